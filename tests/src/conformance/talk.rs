//! A NIC with the real driver on one end of a cable, a packet peer on the other, and what they say to each other.

use crate::noise;
use abi::queue::event;
use abi::status::{cause, counter, wc};
use abi::table::qp_state;
use driver::qp::{Path, QpSizes, Rts, SendOptions};
use driver::{Access, Completion, Cq, Data, Flags, Mr, Qp, Srq, WcError};
use fabric::peer::{self, Operation, Packet, Peer, Request, ack, behind, op, syndrome};
use std::collections::BTreeMap;
use testbed::Solo;

/// How NIC and peer are connected.
#[derive(Clone, Copy)]
pub struct Terms {
    /// First PSN of both directions; PSNs of scripts count from it.
    pub psn: u32,
    /// Path MTU.
    pub mtu: usize,
    /// What the peer may do.
    pub access: Access,
    /// READs that the peer may have outstanding.
    pub max_dest_reads: u8,
    /// RNR timer code that the NIC tells.
    pub rnr_timer: u8,
    /// Traffic class and UDP source port of the NIC's frames.
    pub traffic_class: u8,
    pub source_port: u16,
    /// How the NIC sends.
    pub send: SendOptions,
    /// It takes its receives from a shared queue.
    pub shared: bool,
}

impl Terms {
    /// PSNs wrap at the second packet of every script.
    pub const USUAL: Terms = Terms {
        psn: 0xff_ffff,
        mtu: 256,
        access: Access::all(),
        max_dest_reads: 16,
        rnr_timer: 1,
        traffic_class: 0x6a,
        source_port: 0xd00d,
        send: SendOptions { psn: 0, timeout: 14, retry_count: 7, rnr_retry: 7, max_reads: 16 },
        shared: false,
    };
}

/// QP number of the peer.
pub const PEER_QPN: u32 = 0x0a_bcde;
/// Memory of the NIC's QP.
pub const LEN: usize = 40_000;
/// What scripts have the driver send, receive and read lies from here on; before it is what the peer names.
const OWN: usize = 20_000;
/// A receive's number is this and more.
pub const RECEIVE: u64 = 1000;
/// Nobody says anything for so long, in cycles, when there is nothing to be said; and so long it may take when there is.
const SILENCE: u64 = 800;
const PATIENCE: u64 = 400_000;
/// A doorbell takes no longer.
const DOORBELL: u64 = 250;

/// A conversation on a connection of its own.
pub struct Talk<'a> {
    /// Host and peer.
    pub solo: &'a mut Solo,
    /// The peer.
    pub peer: Peer,
    /// The NIC's QP.
    pub qp: Qp<Rts>,
    /// Its completions.
    pub cq: Cq,
    /// Where its receives are, if not in its own queue.
    pub srq: Option<Srq>,
    /// What they agreed on.
    pub terms: Terms,
    /// Its memory, and what must be in there.
    pub memory: Mr,
    image: Vec<u8>,
    own: usize,
    receives: u64,
    received: u64,
    before: Vec<u64>,
    sent: u64,
    counts: BTreeMap<usize, u64>,
    any_verdict: bool,
    ended: bool,
}

/// A part of a script, named if it fails.
pub struct Case<'a>(pub &'a str);

impl Drop for Case<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("this was: {}", self.0);
        }
    }
}

/// Bytes that a script sends.
pub fn data(len: usize) -> Vec<u8> {
    (0..len).map(noise(77)).collect()
}

/// The answer to all up to `psn`.
pub fn acked(psn: u32, msn: u32) -> Packet {
    ack(psn, syndrome::ACK, msn)
}

/// The cause that a status has, if it has but one: of a send, which the peer's answer or none has ended, or of a receive.
fn cause_of(status: u8, receive: bool) -> Option<u8> {
    match (status, receive) {
        (wc::REM_INV_REQ, false) => Some(cause::NAK_INVALID_REQUEST),
        (wc::REM_ACCESS, false) => Some(cause::NAK_REMOTE_ACCESS),
        (wc::REM_OP, false) => Some(cause::NAK_REMOTE_OPERATION),
        (wc::RETRY_EXC, false) => Some(cause::RETRY_EXCEEDED),
        (wc::RNR_RETRY_EXC, false) => Some(cause::RNR_RETRY_EXCEEDED),
        (wc::BAD_RESP, false) => Some(cause::BAD_RESPONSE),
        (wc::LOC_LEN, true) => Some(cause::RECEIVE_TOO_SHORT),
        (wc::WR_FLUSH, _) => Some(cause::FLUSHED),
        _ => None,
    }
}

/// From the host to the peer.
fn path(solo: &Solo, terms: &Terms) -> Path {
    Path {
        qpn: PEER_QPN,
        psn: terms.psn,
        ip: solo.peer.ip,
        mac: solo.peer.mac,
        mtu: terms.mtu as u32,
        gid: 0,
        traffic_class: terms.traffic_class,
        priority: 0,
        source_port: terms.source_port,
        max_dest_reads: terms.max_dest_reads,
        min_rnr_timer: terms.rnr_timer,
    }
}

impl<'a> Talk<'a> {
    /// The path of its QP.
    pub fn path(&self) -> Path {
        path(self.solo, &self.terms)
    }

    /// Connects.
    pub fn new(solo: &'a mut Solo, terms: Terms) -> Self {
        while solo.host.eq.poll().is_some() {}
        let h = &solo.host;
        let cq = h.device.create_cq(64, &h.eq).unwrap();
        let sizes = QpSizes::new(64, 16);
        let path = path(solo, &terms);
        let srq = terms.shared.then(|| h.pd.create_srq(sizes.receives).unwrap());
        let qp = match &srq {
            Some(srq) => srq.create_qp(&cq, &cq, sizes.send_blocks),
            None => h.pd.create_qp(&cq, &cq, sizes),
        };
        let qp = qp.unwrap().init(terms.access).unwrap().rtr(&path).unwrap();
        let qp = qp.rts(&SendOptions { psn: terms.psn, ..terms.send }).unwrap();
        let image: Vec<u8> = (0..LEN).map(noise(11)).collect();
        let memory = h.pd.alloc(LEN, Access::all()).unwrap();
        memory.write(0, &image);
        let mut t = Talk {
            peer: solo.peer(),
            qp,
            cq,
            srq,
            terms,
            memory,
            image,
            own: OWN,
            receives: 0,
            received: 0,
            before: Vec::new(),
            sent: 0,
            counts: BTreeMap::new(),
            any_verdict: false,
            ended: false,
            solo,
        };
        t.before = t.counters();
        t
    }

    fn counters(&self) -> Vec<u64> {
        (0..counter::RX_CE).map(|i| self.solo.host.device.counter(i)).collect()
    }

    /// Another conversation, on a connection of its own and to its end.
    pub fn apart(&mut self, terms: Terms, script: impl FnOnce(&mut Talk)) {
        let mut own = Talk::new(self.solo, terms);
        script(&mut own);
        for (before, counted) in self.before.iter_mut().zip(own.finish()) {
            *before += counted;
        }
    }

    /// They speak over IPv6.
    pub fn is_ip6(&self) -> bool {
        self.solo.peer.ip.is_ipv6()
    }

    /// Lets time pass.
    pub fn pass(&self, cycles: u64) {
        let end = self.solo.sim().cycle() + cycles;
        while self.solo.sim().cycle() < end {
            self.solo.relax();
        }
    }

    /// Cycles since the start.
    pub fn cycle(&self) -> u64 {
        self.solo.sim().cycle()
    }

    /// A packet as it goes: to the NIC's QP, unless it names another; its PSN counts from the first.
    pub fn addressed(&self, packet: Packet) -> Packet {
        let qpn = if packet.qpn == 0 { self.qp.qpn() } else { packet.qpn };
        Packet { psn: behind(packet.psn, self.terms.psn), qpn, ..packet }
    }

    /// The peer sends a packet.
    pub fn peer(&mut self, packet: Packet) {
        self.frame(self.addressed(packet).frame(&self.peer.envelope));
    }

    /// The peer sends packets, one behind the other.
    pub fn peer_all(&mut self, packets: impl IntoIterator<Item = Packet>) {
        packets.into_iter().for_each(|p| self.peer(p));
    }

    /// The peer sends packets at the same moment.
    pub fn peer_all_at_once(&mut self, packets: impl IntoIterator<Item = Packet>) {
        for p in packets {
            self.peer.send_frame(self.addressed(p).frame(&self.peer.envelope));
            self.sent += 1;
        }
        self.solo.relax();
    }

    /// The peer sends a frame.
    pub fn frame(&mut self, frame: Vec<u8>) {
        self.peer.send_frame(frame);
        self.sent += 1;
        // So that frames of one moment keep their order and a link's time.
        self.solo.relax();
    }

    /// The next packet of the NIC, its PSN counted from the first. Its envelope and QPN are checked.
    pub fn heard(&mut self, want: &str) -> Packet {
        let end = self.cycle() + PATIENCE;
        let (envelope, packet) = loop {
            if let Some(heard) = self.peer.take() {
                break heard;
            }
            assert!(self.cycle() < end, "nothing comes, want {want}");
            self.solo.relax();
        };
        let is = (envelope.traffic_class, envelope.hop_limit, envelope.source_port, envelope.checksum);
        let want_is = (self.terms.traffic_class, 64, self.terms.source_port, false);
        assert_eq!(is, want_is, "traffic class, hop limit, port, checksum of {packet}");
        assert_eq!(packet.qpn, PEER_QPN, "QPN of {packet}");
        Packet { psn: behind(packet.psn, self.terms.psn.wrapping_neg()), qpn: 0, ..packet }
    }

    /// The NIC says this next, to the bit. But whether a READ request asks for an ACK means nothing.
    pub fn nic(&mut self, want: Packet) {
        let mut heard = self.heard(&want.to_string());
        if heard.opcode == op::READ_REQUEST {
            heard.ack_req = want.ack_req;
        }
        assert!(heard == want, "the NIC says\n  {heard}\nwant\n  {want}");
    }

    /// The NIC refuses a request, by a NAK that ends the QP.
    pub fn refuses(&mut self, psn: u32, syndrome: u8) {
        let heard = self.heard(&format!("NAK {syndrome:#x} psn {psn:#x}"));
        // The MSN has a row of its own.
        assert_eq!(heard, ack(psn, syndrome, heard.aeth.map_or(0, |a| a.msn)));
        let counter = match syndrome {
            syndrome::REMOTE_ACCESS => counter::RX_REMOTE_ACCESS,
            syndrome::REMOTE_OPERATION => counter::RX_REMOTE_OPERATION,
            _ => counter::RX_INVALID_REQUEST,
        };
        self.counts(counter, 1);
    }

    /// The NIC refuses a READ: its key is looked at when it is answered, and until then it was accepted.
    pub fn refuses_read(&mut self, psn: u32, syndrome: u8) {
        self.refuses(psn, syndrome);
        self.uncounted();
    }

    /// All frames count as accepted after all, whatever was said before.
    pub fn uncounted(&mut self) {
        self.counts.clear();
    }

    /// The NIC says all of this next.
    pub fn nic_all(&mut self, want: impl IntoIterator<Item = Packet>) {
        want.into_iter().for_each(|p| self.nic(p));
    }

    /// The NIC says nothing.
    pub fn silence(&mut self) {
        self.silence_for(SILENCE);
    }

    /// The NIC says nothing for so many cycles.
    pub fn silence_for(&mut self, cycles: u64) {
        let end = self.cycle() + cycles;
        while self.cycle() < end {
            if let Some((_, p)) = self.peer.take() {
                panic!("the NIC says {} (first PSN {:#x}), want silence", p, self.terms.psn);
            }
            self.solo.relax();
        }
    }

    /// A WRITE of [`data`] to place `at` of the memory.
    pub fn write(&self, at: usize, len: usize) -> Request {
        Request::write(self.memory.addr() + at as u64, self.memory.rkey(), data(len))
    }

    /// A READ of place `at` of the memory.
    pub fn read(&self, at: usize, len: usize) -> Request {
        Request::read(self.memory.addr() + at as u64, self.memory.rkey(), len)
    }

    /// The one packet of a short message.
    pub fn only(&self, psn: u32, request: Request) -> Packet {
        let mut packets = self.cut(psn, request);
        assert_eq!(packets.len(), 1);
        packets.remove(0)
    }

    /// The packets of a message.
    pub fn cut(&self, psn: u32, request: Request) -> Vec<Packet> {
        request.packets(psn, self.terms.mtu)
    }

    /// What is in the memory, by all that was said: the response of a READ.
    pub fn response(&self, psn: u32, msn: u32, at: usize, len: usize) -> Vec<Packet> {
        peer::respond(psn, msn, &self.image[at..at + len], self.terms.mtu)
    }

    /// What must be in the memory by now.
    pub fn expected(&self, at: usize, len: usize) -> Vec<u8> {
        self.image[at..at + len].to_vec()
    }

    /// From now on [`data`] is expected at place `at`.
    pub fn lands(&mut self, at: usize, len: usize) {
        self.lands_data(at, &data(len));
    }

    /// From now on this is expected at place `at`.
    pub fn lands_data(&mut self, at: usize, data: &[u8]) {
        self.image[at..at + data.len()].copy_from_slice(data);
    }

    /// This is at place `at`, or what was there before.
    pub fn may_land(&mut self, at: usize, data: &[u8]) {
        let mut is = vec![0; data.len()];
        self.memory.read(at, &mut is);
        if is == data {
            self.lands_data(at, data);
        }
    }

    /// The host writes to its own memory.
    pub fn host_writes(&mut self, at: usize, data: &[u8]) {
        self.memory.write(at, data);
        self.lands_data(at, data);
    }

    /// The memory is as it must be by now.
    pub fn check_memory(&self) {
        let is = crate::bytes(&self.memory);
        if let Some(at) = is.iter().zip(&self.image).position(|(a, b)| a != b) {
            let end = (at + 16).min(LEN);
            panic!("memory at {at}: {:02x?}, want {:02x?}", &is[at..end], &self.image[at..end]);
        }
    }

    /// All that was posted is done: its memory may be used again.
    pub fn reuse(&mut self) {
        self.own = OWN;
    }

    fn place(&mut self, len: usize) -> usize {
        let at = self.own;
        self.own += len.next_multiple_of(64) + 64;
        assert!(self.own <= LEN, "the script uses more memory than there is");
        at
    }

    /// The driver posts a receive, of which the NIC soon knows; returns its place.
    pub fn receive(&mut self, len: usize) -> usize {
        let at = self.place(len);
        let (wr_id, sges) = (RECEIVE + self.receives, [self.memory.sge(at, len)]);
        match &self.srq {
            Some(srq) => srq.post_recv(wr_id, &sges),
            None => self.qp.post_recv(wr_id, &sges),
        }
        .unwrap();
        self.receives += 1;
        self.pass(DOORBELL);
        at
    }

    /// The driver posts a message, signaled; returns the place of its data, or where its response lands.
    pub fn post(&mut self, id: u64, request: &Request) -> usize {
        self.post_with(id, request, Flags::SIGNALED)
    }

    /// The driver posts a message.
    pub fn post_with(&mut self, id: u64, request: &Request, flags: Flags) -> usize {
        let remote = |addr, rkey| driver::Remote { addr, rkey };
        let (operation, len) = match (request.operation, request.imm) {
            (Operation::Send, None) => (driver::Operation::Send, request.data.len()),
            (Operation::Send, Some(imm)) => (driver::Operation::SendImm(imm), request.data.len()),
            (Operation::Write { va, rkey }, None) => (driver::Operation::Write(remote(va, rkey)), request.data.len()),
            (Operation::Write { va, rkey }, Some(imm)) => {
                (driver::Operation::WriteImm(remote(va, rkey), imm), request.data.len())
            }
            (Operation::Read { va, rkey, len }, _) => (driver::Operation::Read(remote(va, rkey)), len),
        };
        let at = self.place(len);
        self.host_writes(at, &request.data);
        let solicited = if request.solicited { Flags::SOLICITED } else { Flags::empty() };
        let mut batch = self.qp.post();
        batch.add(id, operation, Data::Sges(&[self.memory.sge(at, len)]), flags | solicited).unwrap();
        batch.ring();
        at
    }

    /// The next completion, which is `want`.
    pub fn completion(&mut self, want: &str) -> Completion {
        let end = self.cycle() + PATIENCE;
        loop {
            if let Some(c) = self.cq.poll().next() {
                return c;
            }
            assert!(self.cycle() < end, "nothing completes, want {want}");
            self.solo.relax();
        }
    }

    /// The next completion is of this message, and good.
    pub fn completes(&mut self, id: u64) {
        let c = self.completion(&format!("message {id}"));
        assert_eq!((c.wr_id, c.status), (id, Ok(())), "{c:?}");
    }

    /// The next completion is of the oldest receive, of a message of `len` bytes with immediate data `imm`.
    pub fn receives(&mut self, len: usize, imm: Option<[u8; 4]>) {
        let c = self.completion("a receive");
        let want = (RECEIVE + self.received, Ok(()), len as u32, imm);
        assert_eq!((c.wr_id, c.status, c.len, c.imm), want, "{c:?}");
        self.received += 1;
    }

    /// The same of a SEND that has invalidated a key.
    pub fn receives_and_closes(&mut self, len: usize, rkey: u32) {
        let c = self.completion("a receive");
        let want = (RECEIVE + self.received, Ok(()), len as u32, Some(rkey));
        assert_eq!((c.wr_id, c.status, c.len, c.invalidated), want, "{c:?}");
        self.received += 1;
    }

    /// The next completion is of this message, with this error, which has but one cause; then the QP has ended.
    pub fn fails(&mut self, id: u64, status: u8) {
        let cause = cause_of(status, id >= RECEIVE).expect("a status of one cause");
        self.fails_by(id, status, cause);
    }

    /// The same with a cause.
    pub fn fails_by(&mut self, id: u64, status: u8, cause: u8) {
        let c = self.completion(&format!("message {id}"));
        assert_eq!((c.wr_id, c.status), (id, Err(WcError { status, cause })), "{c:?}");
        self.ended = true;
    }

    /// The oldest receive fails.
    pub fn receive_fails(&mut self, status: u8) {
        self.fails(RECEIVE + self.received, status);
        self.received += 1;
    }

    /// The same with a cause.
    pub fn receive_fails_by(&mut self, status: u8, cause: u8) {
        self.fails_by(RECEIVE + self.received, status, cause);
        self.received += 1;
    }

    /// The QP has ended without a completion: the driver gets the event of it, with this cause.
    pub fn ends_by(&mut self, want: u8) {
        assert_eq!(self.ends(), want, "cause of the end");
    }

    /// The same; returns the cause.
    pub fn ends(&mut self) -> u8 {
        let end = self.cycle() + PATIENCE;
        let qpn = self.qp.qpn();
        self.ended = true;
        loop {
            match self.solo.host.eq.poll() {
                Some(e) if e.kind == event::QP_ERROR && e.number == qpn => return e.value as u8,
                _ => {}
            }
            assert!(self.cycle() < end, "no event tells that the QP has ended");
            self.solo.relax();
        }
    }

    /// The QP is in ERR from now on.
    pub fn has_ended(&mut self) {
        self.ended = true;
    }

    /// So many of the frames that the peer sent are counted here, in place of RX_ACCEPTED.
    pub fn counts(&mut self, counter: usize, frames: u64) {
        *self.counts.entry(counter).or_default() += frames;
    }

    /// The last frame went to so many QPs: each copy has a verdict.
    pub fn copied(&mut self, copies: usize) {
        self.sent += copies as u64 - 1;
    }

    /// Frames were lost by chance: what is left of them may be ahead, or behind, or stale. Each has a verdict all the same.
    pub fn any_sequence(&mut self) {
        self.any_verdict = true;
    }

    /// The next packet of the NIC, if one has come, its PSN counted from the first.
    pub fn take(&mut self) -> Option<Packet> {
        let (_, p) = self.peer.take()?;
        Some(Packet { psn: behind(p.psn, self.terms.psn.wrapping_neg()), qpn: 0, ..p })
    }

    /// What must hold at the end of every script: silence, memory as it must be, each frame counted where it belongs, nothing
    /// completed that was not named, the QP in the right state. Returns what was counted.
    pub fn finish(mut self) -> Vec<u64> {
        // What was sent again in vain is still being answered.
        while self.any_verdict {
            self.pass(SILENCE);
            if std::iter::from_fn(|| self.peer.take()).count() == 0 {
                break;
            }
        }
        self.silence();
        self.check_memory();
        let counted: Vec<_> = self.counters().iter().zip(&self.before).map(|(now, before)| now - before).collect();
        if self.any_verdict {
            assert_eq!(counted.iter().sum::<u64>(), self.sent, "each frame has a verdict");
        } else {
            let mut want = std::mem::take(&mut self.counts);
            let others: u64 = want.values().sum();
            *want.entry(counter::RX_ACCEPTED).or_default() += self.sent - others;
            let want = |i| want.get(&i).copied().unwrap_or(0);
            let wrong = (0..counted.len()).filter(|i| counted[*i] != want(*i));
            let wrong: Vec<_> =
                wrong.map(|i| format!("{} {}, want {}", counter::NAMES[i].0, counted[i], want(i))).collect();
            assert!(wrong.is_empty(), "counters: {wrong:?}");
        }
        let state = self.qp.query().unwrap().state;
        assert_eq!(state, if self.ended { qp_state::ERR } else { qp_state::RTS }, "state of the QP");
        for c in self.cq.poll() {
            let flushed = self.ended && c.status.err().is_some_and(|e| e.status == wc::WR_FLUSH);
            assert!(flushed, "a completion that nobody asked for: {c:?}");
        }
        let faults = self.solo.sim().nic(0).host.iommu.take_faults();
        assert!(faults.is_empty(), "DMA outside of the maps: {faults:x?}");
        counted
    }
}
