//! Memory of a mix: areas of shared regions, and what each must hold in the end.

use crate::GUARD;
use driver::{Access, Mr, Pd, Remote, Sge, Translation};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use std::rc::Rc;

/// Bytes of each area.
pub const AREA: usize = 192 << 10;

/// A region that is given away area by area.
pub struct Land {
    mr: Rc<Mr>,
    next: usize,
}

impl Land {
    /// Room for `areas`, in pages of `page` bytes that the device maps one by one.
    pub fn new(pd: &Pd, areas: usize, access: Access, page: u64) -> Self {
        let mr = pd.alloc_with(areas.max(1) * AREA, access, Translation::Pages(page)).unwrap();
        Land { mr: Rc::new(mr), next: 0 }
    }

    /// The same of a region that windows may be bound to.
    pub fn for_windows(pd: &Pd, areas: usize, page: u64) -> Self {
        let translation = Translation::Pages(page);
        let mr = pd.alloc_for_windows(areas.max(1) * AREA, Access::LOCAL_WRITE, translation).unwrap();
        Land { mr: Rc::new(mr), next: 0 }
    }

    /// The next area, full of `fill`.
    pub fn area(&mut self, fill: impl Fn(usize) -> u8) -> Area {
        let mut area = Area::of(self.mr.clone(), self.next, fill);
        self.next += AREA;
        area.reset();
        area
    }
}

/// Memory for one purpose of one direction of a pair, and what it must hold in the end.
pub struct Area {
    /// The region it is in.
    pub mr: Rc<Mr>,
    base: usize,
    /// What it must hold.
    pub want: Vec<u8>,
    /// What it holds in the beginning.
    fresh: Vec<u8>,
    /// Where the next destination may start.
    next: usize,
}

impl Area {
    fn of(mr: Rc<Mr>, base: usize, fill: impl Fn(usize) -> u8) -> Self {
        let fresh: Vec<u8> = (0..AREA).map(fill).collect();
        Area { mr, base, want: vec![], fresh, next: 0 }
    }

    /// As it was in the beginning, with room again.
    pub fn reset(&mut self) {
        self.want.clone_from(&self.fresh);
        self.next = 16;
        self.mr.write(self.base, &self.want);
    }

    /// A destination of `len` bytes with guards on both sides, if there is room.
    pub fn place(&mut self, rng: &mut ChaCha8Rng, len: usize) -> Option<usize> {
        let at = self.next + rng.random_range(0..70);
        (at + len + 16 <= AREA).then(|| {
            self.next = at + len + 16;
            at
        })
    }

    /// Where in its region `at` is.
    pub fn offset(&self, at: usize) -> usize {
        self.base + at
    }

    /// `len` bytes at `at`.
    pub fn sge(&self, at: usize, len: usize) -> Sge {
        self.mr.sge(self.base + at, len)
    }

    /// Stretches of it.
    pub fn sges(&self, stretches: &[(usize, usize)]) -> Vec<Sge> {
        stretches.iter().map(|(at, len)| self.sge(*at, *len)).collect()
    }

    /// A place that a peer can name.
    pub fn remote(&self, at: usize) -> Remote {
        self.mr.remote(self.base + at)
    }

    /// Panics unless it holds what it must.
    pub fn check(&self, what: &str) {
        check(&self.mr, self.base, &self.want, what);
    }
}

/// Panics unless a region holds `want` from `base` on.
pub fn check(mr: &Mr, base: usize, want: &[u8], what: &str) {
    let mut got = vec![0; want.len()];
    mr.read(base, &mut got);
    if got != want {
        let differs = |i: &usize| got[*i] != want[*i];
        let at = (0..want.len()).find(differs).unwrap();
        let end = (at..want.len()).find(|i| !differs(i)).unwrap_or(want.len());
        panic!("{what}: bytes {at}..{end} differ, first is {:#04x}, want {:#04x}", got[at], want[at]);
    }
}

/// Cuts `len` bytes at `at` into 1 to 4 stretches, some of them empty.
pub fn cut(rng: &mut ChaCha8Rng, at: usize, len: usize) -> Vec<(usize, usize)> {
    let mut cuts: Vec<usize> = (0..rng.random_range(0..4)).map(|_| rng.random_range(0..=len)).collect();
    cuts.extend([0, len]);
    cuts.sort_unstable();
    cuts.windows(2).map(|w| (at + w[0], w[1] - w[0])).collect()
}

/// Copies `data` over stretches, in order.
pub fn scatter(want: &mut [u8], stretches: &[(usize, usize)], mut data: &[u8]) {
    for (at, len) in stretches {
        let n = (*len).min(data.len());
        want[*at..at + n].copy_from_slice(&data[..n]);
        data = &data[n..];
    }
}

/// What nothing may touch.
pub fn guards(_: usize) -> u8 {
    GUARD
}
