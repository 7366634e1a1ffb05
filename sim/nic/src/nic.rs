//! The clock loop of one NIC: core, host and MAC, cycle by cycle.

use crate::axi::Checker;
use crate::host::{BarRequest, Host};
use crate::mac::{Frame, LinkRate, MacRx, MacTx};
use crate::pcie::{Adversary, PcieProfile};
use crate::verdict::{Verdict, Verdicts};
use crate::{Fs, NS};
use verilate::{Model, Port};

/// How a NIC is set up around its core.
#[derive(Clone, Debug)]
pub struct NicOptions {
    /// PCIe link and root complex.
    pub pcie: PcieProfile,
    /// How hostile the host is.
    pub adversary: Adversary,
    /// Link rate.
    pub link: LinkRate,
    /// Clock period.
    pub clock: Fs,
    /// Latency of the MAC, each side.
    pub mac_latency: Fs,
    /// Seed of all that is by chance.
    pub seed: u64,
}

impl Default for NicOptions {
    /// 250 MHz, 100G, Gen3 x16, friendly.
    fn default() -> Self {
        NicOptions {
            pcie: PcieProfile::gen3x16(),
            adversary: Adversary::Friendly,
            link: LinkRate::gbps(100.0),
            clock: 4 * NS,
            mac_latency: 0,
            seed: 1,
        }
    }
}

struct Ports {
    ar_addr: Port,
    ar_len: Port,
    ar_id: Port,
    ar_valid: Port,
    ar_ready: Port,
    r_data: Port,
    r_id: Port,
    r_resp: Port,
    r_last: Port,
    r_valid: Port,
    r_ready: Port,
    aw_addr: Port,
    aw_len: Port,
    aw_valid: Port,
    aw_ready: Port,
    w_data: Port,
    w_strb: Port,
    w_last: Port,
    w_valid: Port,
    w_ready: Port,
    b_resp: Port,
    b_valid: Port,
    b_ready: Port,
    rx_data: Port,
    rx_bytes: Port,
    rx_last: Port,
    rx_valid: Port,
    rx_error: Port,
    tx_data: Port,
    tx_bytes: Port,
    tx_last: Port,
    tx_error: Port,
    tx_valid: Port,
    tx_ready: Port,
    bar0: Port,
    bar0_valid: Port,
    bar0_ready: Port,
    bar0_rdata: Port,
    bar0_rvalid: Port,
    bar2: Port,
    bar2_valid: Port,
    link_up: Port,
}

impl Ports {
    fn of(m: &Model) -> Self {
        Ports {
            ar_addr: m.port("axi_read.ar_addr"),
            ar_len: m.port("axi_read.ar_len"),
            ar_id: m.port("axi_read.ar_id"),
            ar_valid: m.port("axi_read.ar_valid"),
            ar_ready: m.port("axi_read.ar_ready"),
            r_data: m.port("axi_read.r_data"),
            r_id: m.port("axi_read.r_id"),
            r_resp: m.port("axi_read.r_resp"),
            r_last: m.port("axi_read.r_last"),
            r_valid: m.port("axi_read.r_valid"),
            r_ready: m.port("axi_read.r_ready"),
            aw_addr: m.port("axi_write.aw_addr"),
            aw_len: m.port("axi_write.aw_len"),
            aw_valid: m.port("axi_write.aw_valid"),
            aw_ready: m.port("axi_write.aw_ready"),
            w_data: m.port("axi_write.w_data"),
            w_strb: m.port("axi_write.w_strb"),
            w_last: m.port("axi_write.w_last"),
            w_valid: m.port("axi_write.w_valid"),
            w_ready: m.port("axi_write.w_ready"),
            b_resp: m.port("axi_write.b_resp"),
            b_valid: m.port("axi_write.b_valid"),
            b_ready: m.port("axi_write.b_ready"),
            rx_data: m.port("mac_rx.data"),
            rx_bytes: m.port("mac_rx.bytes"),
            rx_last: m.port("mac_rx.last"),
            rx_valid: m.port("mac_rx.valid"),
            rx_error: m.port("mac_rx_error"),
            tx_data: m.port("mac_tx.data"),
            tx_bytes: m.port("mac_tx.bytes"),
            tx_last: m.port("mac_tx.last"),
            tx_error: m.port("mac_tx_error"),
            tx_valid: m.port("mac_tx.valid"),
            tx_ready: m.port("mac_tx.ready"),
            bar0: m.port("bar0.data"),
            bar0_valid: m.port("bar0.valid"),
            bar0_ready: m.port("bar0.ready"),
            bar0_rdata: m.port("bar0_rdata"),
            bar0_rvalid: m.port("bar0_rvalid"),
            bar2: m.port("bar2"),
            bar2_valid: m.port("bar2_valid"),
            link_up: m.port("link_up"),
        }
    }
}

/// What passes between the core and its surroundings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Passage {
    /// A store to BAR2.
    Doorbell,
    /// A read request to the host.
    ReadRequest,
    /// A beat of read data.
    ReadData,
    /// A write address.
    Write,
    /// A beat of a frame to the MAC; `true` for its last one.
    Sent(bool),
    /// A beat of a frame from the MAC; `true` for its last one.
    Received(bool),
}

/// Channels around the core that stand still until they are let go: for tests of who may wait for whom.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Hold {
    /// Read requests are not taken.
    pub read_address: bool,
    /// No read data comes.
    pub read_data: bool,
    /// Write addresses are not taken.
    pub write_address: bool,
    /// Write data is not taken.
    pub write_data: bool,
    /// No write response comes.
    pub write_response: bool,
    /// The MAC takes nothing: the link is paused.
    pub mac_tx: bool,
}

/// `rtl::msg::BarAccess` as the port carries it.
fn pack(r: &BarRequest) -> [u8; 12] {
    let head = u128::from(r.offset & 0xff_ffff) | u128::from(r.write.is_some()) << 24 | u128::from(r.bytes == 8) << 25;
    let word = head | u128::from(r.write.unwrap_or(0)) << 26;
    word.to_le_bytes()[..12].try_into().expect("12 of 16")
}

/// A NIC in its host.
pub struct Nic {
    model: Model,
    ports: Ports,
    options: NicOptions,
    width: usize,
    cycle: u64,
    /// The host around it.
    pub host: Host,
    /// What stands still at present.
    pub hold: Hold,
    tx: MacTx,
    rx: MacRx,
    received: u64,
    verdicts: Verdicts,
    axi: Checker,
    passages: Option<Vec<(u64, Passage)>>,
}

impl Nic {
    /// Puts the core `model` into a host. The model is reset.
    pub fn new(mut model: Model, options: NicOptions) -> Self {
        let (ports, verdicts) = (Ports::of(&model), Verdicts::of(&model));
        let width = model.width(ports.rx_data);
        model.reset();
        model.set(ports.link_up, 1);
        let host = Host::new(options.pcie.clone(), options.adversary, width, options.seed);
        let tx = MacTx::new(options.link);
        let (hold, rx) = (Hold::default(), MacRx::default());
        let axi = Checker::new(width, options.pcie.max_read);
        let passages = None;
        Nic { model, ports, width, cycle: 0, host, hold, tx, rx, received: 0, verdicts, axi, passages, options }
    }

    /// Cycles since the start.
    pub fn cycle(&self) -> u64 {
        self.cycle
    }

    /// Time since the start.
    pub fn now(&self) -> Fs {
        self.cycle * self.options.clock
    }

    /// How it was set up.
    pub fn options(&self) -> &NicOptions {
        &self.options
    }

    /// The core, for tests that look inside.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Sends an access to a BAR, now.
    pub fn bar(&mut self, request: BarRequest) {
        self.host.bar(self.now(), request);
    }

    /// The answer of the oldest BAR read, once it is back.
    pub fn bar_answer(&mut self) -> Option<u64> {
        self.host.bar_answer(self.now())
    }

    /// Plugs the cable in or out.
    pub fn set_link(&mut self, up: bool) {
        self.model.set(self.ports.link_up, up.into());
    }

    /// Frames that have left the MAC since the last call.
    pub fn take_sent(&mut self) -> Vec<Frame> {
        let mut sent = std::mem::take(&mut self.tx.out);
        sent.iter_mut().for_each(|f| f.at += self.options.mac_latency);
        sent
    }

    /// A frame whose last byte arrives at `frame.at`; frames come in that order. Returns its number, from 0.
    pub fn receive(&mut self, mut frame: Frame) -> u64 {
        frame.at += self.options.mac_latency;
        self.rx.push(frame);
        self.received += 1;
        self.received - 1
    }

    /// What became of frames since the last call, by number; not in order.
    pub fn take_verdicts(&mut self) -> Vec<(u64, Verdict)> {
        std::mem::take(&mut self.verdicts.out)
    }

    /// Begins, or begins anew, to note what passes around the core; returns what was noted so far, with its cycles.
    pub fn note_passages(&mut self) -> Vec<(u64, Passage)> {
        self.passages.replace(Vec::new()).unwrap_or_default()
    }

    /// True while frames or bus accesses are on their way around the core.
    pub fn is_busy(&self) -> bool {
        self.host.is_busy() || !self.rx.is_idle()
    }

    /// One clock cycle.
    pub fn step(&mut self) {
        let now = self.now();
        let (m, p, host, hold) = (&mut self.model, &self.ports, &mut self.host, self.hold);

        // What the core sees in this cycle.
        host.perform(now);
        let read_ready = host.read_ready() && !hold.read_address;
        m.set(p.ar_ready, read_ready.into());
        let beat = if hold.read_data { None } else { host.read_beat(now) };
        m.set(p.r_valid, beat.is_some().into());
        if let Some(b) = &beat {
            m.set_bytes(p.r_data, &b.data);
            m.set(p.r_id, b.id.into());
            m.set(p.r_resp, if b.error { 2 } else { 0 });
            m.set(p.r_last, b.last.into());
        }
        let aw_ready = host.write_address_ready() && !hold.write_address;
        let w_ready = host.write_data_ready(now) && !hold.write_data;
        m.set(p.aw_ready, aw_ready.into());
        m.set(p.w_ready, w_ready.into());
        let response = if hold.write_response { None } else { host.write_response() };
        m.set(p.b_valid, response.is_some().into());
        m.set(p.b_resp, if response == Some(true) { 2 } else { 0 });
        let mut delivered = false;
        match self.rx.beat(now, self.width / 8) {
            Some((bytes, last, error)) => {
                delivered = last;
                m.set_bytes(p.rx_data, bytes);
                m.set(p.rx_bytes, bytes.len() as u64);
                m.set(p.rx_last, last.into());
                m.set(p.rx_error, (last && error).into());
                m.set(p.rx_valid, 1);
            }
            None => m.set(p.rx_valid, 0),
        }
        let tx_ready = self.tx.ready(now) && !hold.mac_tx;
        m.set(p.tx_ready, tx_ready.into());
        let access = host.bar_arrived(now);
        m.set(p.bar0_valid, access.is_some_and(|a| a.bar == 0).into());
        m.set(p.bar2_valid, access.is_some_and(|a| a.bar == 2).into());
        if let Some(a) = &access {
            m.set_bytes(if a.bar == 0 { p.bar0 } else { p.bar2 }, &pack(a));
        }
        m.eval();

        // What it answers.
        let read = m.bit(p.ar_valid).then(|| (m.get(p.ar_addr), m.get(p.ar_len) + 1, m.get(p.ar_id) as u8));
        let write = m.bit(p.aw_valid).then(|| (m.get(p.aw_addr), m.get(p.aw_len) + 1));
        let data = m.bit(p.w_valid).then(|| (m.bytes(p.w_data).to_vec(), m.get(p.w_strb), m.bit(p.w_last)));
        if let (Some((address, beats, id)), true) = (read, read_ready) {
            host.read(now, address, beats, id);
        }
        if let (Some((address, beats)), true) = (write, aw_ready) {
            host.write_address(address, beats);
        }
        if let (Some((bytes, strobe, last)), true) = (&data, w_ready) {
            host.write_data(now, bytes, *strobe, *last);
        }
        if let Some(b) = &beat {
            self.axi.read_data(b.id, b.last, m.bit(p.r_ready));
        }
        if response.is_some() {
            self.axi.write_response(m.bit(p.b_ready));
        }
        self.axi.read_address(read, read_ready);
        self.axi.write_address(write, aw_ready);
        self.axi.write_data(data, w_ready);
        let frame = m.bit(p.tx_valid).then(|| {
            let n = m.get(p.tx_bytes) as usize;
            (m.bytes(p.tx_data)[..n].to_vec(), m.bit(p.tx_last), m.bit(p.tx_error))
        });
        self.tx.observe(now, frame, tx_ready);
        if access.is_some_and(|a| a.bar == 2 || m.bit(p.bar0_ready)) {
            host.bar_taken();
        }
        if m.bit(p.bar0_rvalid) {
            host.bar_answered(now, m.get(p.bar0_rdata));
        }
        self.verdicts.observe(m, delivered);
        if let Some(passages) = &mut self.passages {
            let mut note = |happens: bool, what| {
                if happens {
                    passages.push((self.cycle, what));
                }
            };
            note(access.is_some_and(|a| a.bar == 2), Passage::Doorbell);
            note(read_ready && m.bit(p.ar_valid), Passage::ReadRequest);
            note(beat.is_some(), Passage::ReadData);
            note(aw_ready && m.bit(p.aw_valid), Passage::Write);
            note(tx_ready && m.bit(p.tx_valid), Passage::Sent(m.bit(p.tx_last)));
            note(m.bit(p.rx_valid), Passage::Received(m.bit(p.rx_last)));
        }
        m.edge();
        self.cycle += 1;
    }
}
