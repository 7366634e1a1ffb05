//! Measures figures, on the bare core and on a board, and keeps them.

use super::{Board, Figure, Run};
use crate::report::note;
use anyhow::Result;
use nic::{NS, PcieProfile};
use testbed::Setup;

/// What a figure should be: its bar, and the value that no implementation can pass.
#[derive(Clone, Copy)]
pub enum Ask {
    AtLeast(f64, Option<f64>),
    AtMost(f64, Option<f64>),
}
use Ask::{AtLeast, AtMost};

/// The figures so far, and how they are measured.
pub struct Bench {
    pub(super) setup: Setup,
    /// The same with a board's MAC, for the column beside.
    pub(super) board: Option<Setup>,
    pub(super) only: String,
    pub(super) figures: Vec<Figure>,
}

impl Bench {
    /// Measures the figures whose name contains `only`.
    pub fn new(gen4: bool, board: Board, only: &str) -> Self {
        let mut setup = Setup::default();
        if gen4 {
            setup.nic.pcie = PcieProfile::gen4x16();
        }
        let mut slower = setup.clone();
        slower.nic.mac_latency = 250 * NS;
        let (setup, board) = match board {
            Board::Only => (slower, None),
            Board::Beside => (setup, Some(slower)),
            Board::Without => (setup, None),
        };
        Bench { setup, board, only: only.into(), figures: Vec::new() }
    }

    /// The figures that were measured.
    pub fn done(self) -> Vec<Figure> {
        self.figures
    }

    /// Whether a figure of this name is wanted.
    pub fn wants(&self, name: &str) -> bool {
        name.contains(&self.only)
    }

    /// What to measure on.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Adds a figure.
    pub fn push(&mut self, figure: Figure) {
        note!("{}: {:.2} {}", figure.figure, figure.value, figure.unit);
        self.figures.push(figure);
    }

    /// Measures a figure if it is wanted, on the board as well if that is.
    pub fn measure(
        &mut self,
        name: &str,
        unit: &'static str,
        ask: Ask,
        run: impl Fn(&Setup) -> Result<Run>,
    ) -> Result<()> {
        if !self.wants(name) {
            return Ok(());
        }
        let r = run(&self.setup)?;
        let mut f = match ask {
            AtLeast(bar, limit) => Figure::at_least(name, r.value, unit, bar, limit),
            AtMost(bar, limit) => Figure::at_most(name, r.value, unit, bar, limit),
        };
        f.pcie = r.pcie;
        f.board = self.board.as_ref().map(run).transpose()?.map(|r| r.value);
        self.push(f);
        Ok(())
    }
}
