//! Key check and address translation for the receive and the transmit side.
//!
//! Two access ports share the check of keys and the translation behind it. One request a cycle, the ports by turns.
//!
//! ```text
//! rx_req -> Access --+                         +--> Access -> rx_chunk
//!                    +-> Keys -+-> Translate --+
//! tx_req -> Access --+         +- (contiguous) +--> Access -> tx_chunk
//! ```
//! When a key dies, the chunks of the transmit side that were let in before and have not been taken are refused, and landing hears
//! when those that have been read are back: see [`super::revoke`].
//!
//! A request's first chunk is there 8 cycles after the request is taken, 4 if its region is contiguous and nothing is before it. Cannot
//! deadlock: see the parts; neither side can hold the other up, as answers go into room that the asking port keeps free.

use super::{access::Access, keys::Keys, revoke::Revoke, translate::Translate};
use crate::{
    msg::{AccessReq, Chunk},
    stream::{BadRow, Sink, Source, TablePort},
};
use abi::status::cause;
use hdl::prelude::*;

/// The two access ports with their tables.
#[derive(LogicBlock)]
pub struct Mmu {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// Requests of landing.
    pub rx_req: Sink<AccessReq>,
    /// Their chunks.
    pub rx_chunk: Source<Chunk>,
    /// Requests of the transmit frames.
    pub tx_req: Sink<AccessReq>,
    /// Their chunks.
    pub tx_chunk: Source<Chunk>,
    /// Reads of the transmit frames change their colour; see [`super::revoke`].
    pub turns: Signal<In, Bit>,
    /// The transmit frames may still read memory of a key that a chunk of landing has invalidated.
    pub reading: Signal<Out, Bit>,
    /// `abi::table::key` rows.
    pub table: TablePort,
    /// For tests: key rows written now are stored damaged.
    pub flip: Signal<In, Bit>,
    /// A key row was found damaged.
    pub bad: Signal<Out, BadRow>,
    /// The table loader writes a frame; it cannot be refused.
    pub mtt_we: Signal<In, Bit>,
    /// Entry.
    pub mtt_addr: Signal<In, Bits<24>>,
    /// Page frame.
    pub mtt_frame: Signal<In, Bits<36>>,
    keys: Keys,
    translate: Translate,
    revoke: Revoke,
    ports: Arr<Access, 2>,
    turn: Reg<Bit>,
}

impl Mmu {
    /// Tables of `keys` keys and `frames` page frames, an even number.
    pub fn new(keys: usize, frames: usize) -> Self {
        Self {
            clock: Default::default(),
            rst: Default::default(),
            rx_req: Default::default(),
            rx_chunk: Default::default(),
            tx_req: Default::default(),
            tx_chunk: Default::default(),
            turns: Default::default(),
            reading: Default::default(),
            table: Default::default(),
            flip: Default::default(),
            bad: Default::default(),
            mtt_we: Default::default(),
            mtt_addr: Default::default(),
            mtt_frame: Default::default(),
            keys: Keys::new(keys),
            translate: Translate::new(frames),
            revoke: Revoke::new(keys),
            ports: Default::default(),
            turn: Default::default(),
        }
    }
}

impl Logic for Mmu {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, turn);
        clock_reset!(self, clock, rst, keys, translate, revoke);
        for i in 0..2 {
            clock_reset!(self, clock, rst, ports[i]);
        }
        Sink::<AccessReq>::link(&mut self.rx_req, &mut self.ports[0].req);
        Source::<Chunk>::link(&mut self.rx_chunk, &mut self.ports[0].chunk);
        Sink::<AccessReq>::link(&mut self.tx_req, &mut self.ports[1].req);
        let chunk = self.ports[1].chunk.data.val();
        let some = self.ports[1].chunk.valid.val();
        let takes = self.tx_chunk.ready.val();
        let dead = self.revoke.dead.val();
        self.tx_chunk.valid.next = some;
        self.tx_chunk.data.next = chunk;
        self.tx_chunk.data.next.refused = chunk.refused || dead;
        if dead && !chunk.refused {
            self.tx_chunk.data.next.cause = elab!(bits::<8>(cause::KEY_INVALID as u64));
        }
        self.ports[1].chunk.ready.next = takes;
        self.revoke.taken.next = some && takes;
        self.revoke.last.next = chunk.last;
        self.revoke.refused.next = chunk.refused;
        self.revoke.turns.next = self.turns.val();
        self.revoke.kill.next = self.keys.killed.val();
        self.revoke.key.next = self.keys.dying.val();
        self.reading.next = self.revoke.reading.val();

        // The port whose turn it is, if it asks, else the other one.
        let wants = self.ports[0].wants.val();
        let one = self.ports[1].wants.val() && (self.turn.q.val() || !wants);
        let open = self.keys.open.val();
        self.keys.ask.next = open && (wants || one);
        self.keys.from.next = one;
        self.keys.index.next = if one { self.ports[1].index.val() } else { self.ports[0].index.val() };
        // Only received packets invalidate keys.
        self.keys.kills.next = open && wants && !one && self.ports[0].kills.val();
        self.ports[0].asks.next = open && wants && !one;
        self.ports[1].asks.next = open && one;
        self.revoke.asks.next = open && one;
        self.revoke.index.next = self.ports[1].index.val();
        self.turn.d.next = !one;
        self.keys.asked.next =
            if self.keys.asker.val() { self.ports[1].asked.val() } else { self.ports[0].asked.val() };

        // A contiguous region with nothing before it is a chunk as it is: it goes past the translation.
        let port = self.keys.port.val();
        let passes = self.keys.passes.val();
        let leads = if port { self.ports[1].leads.val() } else { self.ports[0].leads.val() };
        let early = passes && self.keys.contiguous.val() && leads && self.translate.free.val();
        self.keys.early_taken.next = early;
        self.translate.early.next = self.keys.early.val();
        self.translate.early_port.next = port;
        self.translate.early_valid.next = early;
        self.translate.region.next = self.keys.region.val();
        self.translate.region_valid.next = self.keys.region_valid.val();
        for i in 0..2 {
            self.ports[i].passes.next = passes && port == (i == 1);
            self.ports[i].done.next = self.translate.piece.val();
            self.ports[i].done_valid.next = self.translate.valid[i].val();
        }

        TablePort::link(&mut self.table, &mut self.keys.table);
        self.keys.flip.next = self.flip.val();
        self.bad.next = self.keys.bad.val();
        self.translate.mtt_we.next = self.mtt_we.val();
        self.translate.mtt_addr.next = self.mtt_addr.val();
        self.translate.mtt_frame.next = self.mtt_frame.val();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::msg::TableReq;
    use abi::{
        status::cause,
        table::{MTT_INDEX, PAGE_SHIFT, access as flag, id, key},
    };
    use rand::RngExt;
    use rand_chacha::ChaCha8Rng;
    use verilate::{
        Model, Options,
        bench::{self, Actor, Sink as Taker, Source as Giver, Stall},
        scale,
    };

    const KEYS: usize = 64;
    const FRAMES: usize = 1024;

    #[derive(Clone, Copy, Default)]
    struct Key {
        valid: bool,
        access: u8,
        invalidate: u8,
        window: bool,
        qpn: u16,
        contiguous: bool,
        byte: u8,
        pd: u16,
        shift: u32,
        first: usize,
        va: u64,
        length: u64,
        iova: u64,
    }

    #[derive(Clone, Copy, Debug)]
    struct Want {
        key: u32,
        va: u64,
        len: u64,
        span: u64,
        pd: u16,
        qpn: u16,
        need: u8,
    }

    /// The rules, on plain numbers: cause, or chunks of (address, length, offset).
    fn reference(keys: &[Key], frames: &[u64], want: &Want) -> (u8, Vec<(u64, u64, u64)>) {
        let Some(k) = keys.get((want.key >> 8) as usize).filter(|k| k.valid && k.byte == want.key as u8) else {
            return (cause::KEY_INVALID, vec![]);
        };
        if k.pd != want.pd || k.window && k.qpn != want.qpn {
            return (cause::KEY_PD, vec![]);
        }
        let allowed = k.access | k.invalidate << 4;
        if allowed & want.need != want.need || k.window && want.need == 0 {
            return (cause::KEY_ACCESS, vec![]);
        }
        if want.need >= 16 {
            return (0, vec![]);
        }
        let (from, upto) = (u128::from(want.va), u128::from(want.va) + u128::from(want.span));
        if from < k.va.into() || upto > u128::from(k.va) + u128::from(k.length) {
            return (cause::KEY_BOUNDS, vec![]);
        }
        if k.contiguous {
            return (0, vec![(k.iova.wrapping_add(want.va - k.va), want.len, 0)]);
        }
        let mut chunks = vec![];
        let (mut va, end) = (want.va, want.va as u128 + want.len as u128);
        while u128::from(va) < end {
            let page = (va >> k.shift) - (k.va >> k.shift);
            let base = (frames[k.first + page as usize] << 12) & !((1 << k.shift) - 1);
            let stop = end.min((u128::from(va >> k.shift) + 1) << k.shift);
            chunks.push((base | (va & ((1 << k.shift) - 1)), (stop - u128::from(va)) as u64, va - want.va));
            if stop > u128::from(u64::MAX) {
                break;
            }
            va = stop as u64;
        }
        (0, chunks)
    }

    fn row(k: &Key) -> Bits<512> {
        let mut row = [0u8; 64];
        key::VALID.set(&mut row, k.valid.into());
        key::ACCESS.set(&mut row, k.access.into());
        key::INVALIDATE.set(&mut row, k.invalidate.into());
        key::CONTIGUOUS.set(&mut row, k.contiguous.into());
        key::KEY_BYTE.set(&mut row, k.byte.into());
        key::PD.set(&mut row, k.pd.into());
        key::WINDOW.set(&mut row, k.window.into());
        key::QPN.set(&mut row, k.qpn.into());
        key::VA.set(&mut row, k.va);
        key::LENGTH.set(&mut row, k.length);
        if k.contiguous {
            key::IOVA.set(&mut row, k.iova);
        } else {
            PAGE_SHIFT.set(&mut row, k.shift.into());
            MTT_INDEX.set(&mut row, k.first as u64);
        }
        from_bytes(&row)
    }

    fn from_bytes(row: &[u8; 64]) -> Bits<512> {
        let mut out = Bits::<512>::default();
        (0..64).for_each(|i| out.set_bits::<8>(8 * i, bits(u64::from(row[i]))));
        out
    }

    fn access(table: u8, index: usize, write: bool, row: Bits<512>) -> TableReq {
        TableReq { table: bits(table.into()), index: bits(index as u64), write, row }
    }

    /// The table bus as a test drives it: accesses in order, answers of reads kept.
    struct Bus {
        queue: std::collections::VecDeque<TableReq>,
        answers: Vec<Vec<u8>>,
    }
    impl Actor for Bus {
        fn drive(&mut self, m: &mut Model) {
            m.set("table.valid", u64::from(!self.queue.is_empty()));
            if let Some(req) = self.queue.front() {
                m.set_bytes("table.req", &verilate::bits::of(*req));
            }
        }
        fn observe(&mut self, m: &Model) {
            if m.bit("table.rvalid") {
                self.answers.push(m.get_bytes("table.rdata"));
            }
            if !self.queue.is_empty() && m.bit("table.ready") {
                self.queue.pop_front();
            }
        }
        fn done(&self) -> bool {
            self.queue.is_empty()
        }
        fn status(&self) -> String {
            format!("{} table accesses left", self.queue.len())
        }
    }

    fn load(m: &mut Model, reqs: Vec<TableReq>) -> Vec<Vec<u8>> {
        let mut bus = Bus { queue: reqs.into(), answers: vec![] };
        bench::run(m, &mut [&mut bus], 100_000);
        bus.answers
    }

    fn fill_frames(m: &mut Model, frames: &[u64]) {
        for (i, frame) in frames.iter().enumerate() {
            m.set("mtt_we", 1);
            m.set("mtt_addr", i as u64);
            m.set("mtt_frame", *frame);
            m.tick();
        }
        m.set("mtt_we", 0);
    }

    fn random_key(rng: &mut ChaCha8Rng) -> Key {
        let shift = [12, 16, 21, 30][rng.random_range(0..4)];
        let pages = rng.random_range(1..32u64);
        let length = match rng.random_range(0..3) {
            0 => rng.random_range(1..8192),
            _ => (rng.random_range(1..=pages) << shift) - rng.random_range(0..4096),
        };
        let va = match rng.random_range(0..3) {
            0 => 0u64.wrapping_sub(length), // ends at 2^64
            1 => rng.random::<u64>() >> 20,
            _ => rng.random::<u64>() >> 1,
        };
        Key {
            valid: rng.random_bool(0.9),
            access: rng.random_range(0..16) | if rng.random() { 15 } else { 0 },
            invalidate: rng.random_range(0..4),
            window: rng.random_bool(0.3),
            qpn: rng.random_range(0..2) * 0x800,
            contiguous: rng.random_bool(0.3),
            byte: rng.random(),
            pd: rng.random_range(0..3),
            shift,
            first: rng.random_range(0..FRAMES - 40),
            va,
            length,
            iova: rng.random::<u64>() >> 4,
        }
    }

    fn random_want(rng: &mut ChaCha8Rng, keys: &[Key]) -> Want {
        let index = rng.random_range(0..KEYS + 2);
        let k = keys.get(index).copied().unwrap_or_default();
        let len = match rng.random_range(0..4) {
            0 => rng.random_range(1..=16383),
            1 => 4096,
            _ => rng.random_range(1..=1024),
        };
        let va = match rng.random_range(0..8) {
            0 => k.va.wrapping_sub(rng.random_range(0..3)),
            1 => k.va.wrapping_add(k.length).wrapping_sub(len).wrapping_add(rng.random_range(0..2)),
            2 => rng.random(),
            3 => 0xffff_ffff_ffff_fc00,
            _ => k.va.wrapping_add(rng.random_range(0..k.length.saturating_sub(len).max(1))),
        };
        let high = if rng.random_bool(0.02) { 1 << 23 } else { 0 };
        Want {
            key: (index as u32 | high) << 8 | u32::from(if rng.random_bool(0.05) { rng.random() } else { k.byte }),
            va,
            len,
            span: if rng.random_bool(0.8) { len } else { len + (rng.random::<u64>() >> rng.random_range(33..64)) }
                .min(u32::MAX as u64),
            pd: if rng.random_bool(0.95) { k.pd } else { 3 },
            qpn: if rng.random_bool(0.9) { k.qpn } else { 1 },
            need: [0, flag::LOCAL_WRITE, flag::REMOTE_READ, flag::REMOTE_WRITE][rng.random_range(0..4)],
        }
    }

    fn message(want: &Want) -> AccessReq {
        AccessReq {
            key: bits(want.key.into()),
            va: bits(want.va),
            len: bits(want.len),
            span: bits(want.span),
            pd: bits(want.pd.into()),
            qpn: bits(want.qpn.into()),
            need: bits(want.need.into()),
        }
    }

    fn check(k: &mut Taker, wants: &[Want], keys: &[Key], frames: &[u64]) -> [usize; 5] {
        let mut seen = [0; 5];
        for want in wants {
            let (fault, chunks) = reference(keys, frames, want);
            seen[fault as usize] += 1;
            let count = chunks.len();
            for (i, (iova, len, offset)) in chunks.into_iter().enumerate() {
                let got = k.pop().expect("a chunk is missing");
                let got = ["iova", "len", "offset", "last", "cause"].map(|name| got.get(name));
                assert_eq!(got, [iova, len, offset, u64::from(i + 1 == count), 0], "chunk {i} of {want:x?}");
            }
            if fault != 0 {
                let got = k.pop().expect("a refusal is missing");
                assert_eq!((got.get("cause"), got.get("last")), (fault.into(), 1), "{want:x?}");
            }
        }
        assert!(k.is_empty());
        seen
    }

    fn ready(seed: u64) -> (Model, ChaCha8Rng, Vec<Key>, Vec<u64>) {
        let mut m = Model::of(|| Mmu::new(KEYS, FRAMES), Options::default()).unwrap();
        let mut rng = verilate::rng(seed);
        m.reset();
        let frames: Vec<u64> = (0..FRAMES).map(|_| rng.random::<u64>() >> 28).collect();
        fill_frames(&mut m, &frames);
        let keys: Vec<Key> = (0..KEYS).map(|_| random_key(&mut rng)).collect();
        load(&mut m, keys.iter().enumerate().map(|(i, k)| access(id::KEY, i, true, row(k))).collect());
        (m, rng, keys, frames)
    }

    #[test]
    fn both_ports_follow_the_rules() {
        let mut seen = [0; 5];
        for seed in 0..scale(6) as u64 {
            println!("seed {seed}");
            let (mut m, mut rng, keys, frames) = ready(seed);
            let stall = [Stall::Never, Stall::Random, Stall::Rate(0.5)][seed as usize % 3];
            let wants: Vec<Vec<Want>> =
                (0..2).map(|_| (0..1500).map(|_| random_want(&mut rng, &keys)).collect()).collect();
            let (mut rx, mut tx) =
                (Giver::new(&m, "rx_req", stall, seed), Giver::new(&m, "tx_req", Stall::Random, seed + 1));
            let (mut rx_out, mut tx_out) =
                (Taker::new(&m, "rx_chunk", Stall::Random, seed + 2), Taker::new(&m, "tx_chunk", stall, seed + 3));
            wants[0].iter().for_each(|want| rx.send(message(want)));
            wants[1].iter().for_each(|want| tx.send(message(want)));
            let chunks = |wants: &[Want]| -> usize {
                wants.iter().map(|want| reference(&keys, &frames, want).1.len().max(1)).sum()
            };
            rx_out.expect(chunks(&wants[0]) as u64);
            tx_out.expect(chunks(&wants[1]) as u64);
            // Meanwhile the bus reads and rewrites rows, and the frames are written anew.
            let again = |i: usize| access(id::KEY, i % KEYS, i.is_multiple_of(3), row(&keys[i % KEYS]));
            let mut bus = Bus { queue: (0..400).map(again).collect(), answers: vec![] };
            m.set("mtt_addr", 7);
            m.set("mtt_frame", frames[7]);
            m.set("mtt_we", seed % 2);
            for _ in 0..100 {
                bench::cycle(&mut m, &mut [&mut rx, &mut tx, &mut rx_out, &mut tx_out, &mut bus]);
            }
            m.set("mtt_we", 0);
            bench::run(&mut m, &mut [&mut rx, &mut tx, &mut rx_out, &mut tx_out, &mut bus], 200_000);
            for (k, wants) in [(&mut rx_out, &wants[0]), (&mut tx_out, &wants[1])] {
                let part = check(k, wants, &keys, &frames);
                (0..5).for_each(|i| seen[i] += part[i]);
            }
            let read: Vec<usize> = (0..400usize).filter(|i| !i.is_multiple_of(3)).collect();
            assert_eq!(bus.answers.len(), read.len());
            for (answer, i) in bus.answers.iter().zip(read) {
                let mut told = [0; 64];
                key::VALID.set(&mut told, keys[i % KEYS].valid.into());
                assert_eq!(*answer, told);
            }
        }
        println!("granted, invalid, PD, access, bounds: {seen:?}");
        assert!(seen.iter().all(|n| *n > 20));
    }

    /// Received packets use and invalidate few keys, one behind the other, while the other port uses them as well: from the next ask
    /// of its own port on a key is dead, and nothing else opens or closes it.
    /// A taker that notes the cycle of each request's last chunk, and whether it was refused. A chunk that is offered may come to be refused: its key
    /// has died.
    struct Noting(Taker, Vec<(u64, bool)>, &'static str);
    impl Actor for Noting {
        fn drive(&mut self, m: &mut Model) {
            self.0.drive(m);
        }
        fn observe(&mut self, m: &Model) {
            self.0.after_reset();
            let before = self.0.len();
            self.0.observe(m);
            let chunk = crate::transport::kit::fields_of::<Chunk>(m.bytes(&*format!("{}.data", self.2)));
            if self.0.len() > before && chunk.contains_key("last") {
                self.1.push((m.cycle(), chunk.contains_key("refused")));
            }
        }
        fn done(&self) -> bool {
            self.0.done()
        }
        fn status(&self) -> String {
            self.0.status()
        }
    }

    #[test]
    fn a_key_is_dead_from_the_next_ask_on() {
        let (mut killed, mut kept, mut revoked) = (0, 0, 0);
        for seed in 0..scale(6) as u64 {
            println!("seed {seed}");
            let (mut m, mut rng, mut keys, frames) = ready(seed);
            let stall = [Stall::Never, Stall::Random][seed as usize % 2];
            for round in 0..20 {
                // As of a registration: the firmware fills rows that are dead.
                keys.iter_mut().for_each(|k| *k = random_key(&mut rng));
                load(&mut m, keys.iter().enumerate().map(|(i, k)| access(id::KEY, i, true, row(k))).collect());
                let mut rx = Giver::new(&m, "rx_req", stall, seed + round);
                let mut tx = Giver::new(&m, "tx_req", Stall::Random, seed + round + 1);
                let mut rx_out = Noting(Taker::new(&m, "rx_chunk", stall, seed + round + 2), vec![], "rx_chunk");
                let slow = if round % 2 == 0 { stall } else { Stall::Rate(0.9) };
                let mut tx_out = Noting(Taker::new(&m, "tx_chunk", slow, seed + round + 3), vec![], "tx_chunk");
                let (mut opened, mut kills_at) = (vec![], vec![]);
                let mut causes = vec![];
                for _ in 0..60 {
                    let mut want = random_want(&mut rng, &keys);
                    want.len = want.len.min(64);
                    let index = rng.random_range(0..4);
                    let byte = if rng.random_bool(0.9) { keys[index].byte } else { 0 };
                    (want.key, want.pd) = ((index as u32) << 8 | u32::from(byte), keys[index].pd);
                    want.need = [want.need, 16, 32][rng.random_range(0..3)];
                    want.len = if want.need >= 16 { 1 } else { want.len };
                    rx.send(message(&want));
                    tx.send(message(&Want { need: want.need & 15, len: 1, span: 1, ..want }));
                    tx_out.0.expect(1);
                    let reads = Want { need: want.need & 15, len: 1, span: 1, ..want };
                    opened.push((index, reference(&keys, &frames, &reads).0 == 0));
                    let (fault, chunks) = reference(&keys, &frames, &want);
                    let kills = want.need >= 16 && fault == 0;
                    if kills {
                        keys[index].valid = false;
                        killed += 1;
                        kills_at.push((index, causes.len()));
                    }
                    kept += u64::from(want.need >= 16 && fault != 0);
                    rx_out.0.expect(chunks.len().max(1) as u64);
                    causes.push((fault, chunks.len().max(1)));
                }
                // Meanwhile the table bus reads and writes rows that nobody invalidates.
                let others: Vec<_> = (0..100).map(|_| (rng.random_range(4..KEYS), rng.random_bool(0.5))).collect();
                let queue = others.iter().map(|(i, w)| access(id::KEY, *i, *w, row(&keys[*i]))).collect();
                let mut bus = Bus { queue, answers: vec![] };
                let all: &mut [&mut dyn Actor] = &mut [&mut rx, &mut tx, &mut rx_out, &mut tx_out, &mut bus];
                bench::run(&mut m, all, 10_000);
                let read: Vec<_> = others.iter().filter(|o| !o.1).map(|o| keys[o.0].valid).collect();
                assert_eq!(bus.answers.iter().map(|a| key::VALID.get(a) == 1).collect::<Vec<_>>(), read);
                // What has not been taken when a death is told is refused.
                for (kind, at) in kills_at {
                    let told = rx_out.1[at].0;
                    for (i, (_, opens)) in opened.iter().enumerate().filter(|(_, o)| o.0 == kind) {
                        let (taken, refused) = tx_out.1[i];
                        assert!(
                            taken <= told || refused,
                            "seed {seed}, round {round}: read {i} goes behind the death {at}"
                        );
                        revoked += u64::from(*opens && refused);
                    }
                }
                for (fault, count) in causes {
                    let mut chunks = 0;
                    loop {
                        let got = rx_out.0.pop().expect("an answer is missing");
                        chunks += 1;
                        assert_eq!(got.get("cause"), u64::from(fault));
                        if got.get("last") == 1 {
                            break;
                        }
                    }
                    assert_eq!(chunks, count);
                }
                let valid: Vec<_> = (0..KEYS).map(|i| access(id::KEY, i, false, bits(0))).collect();
                let told: Vec<_> = load(&mut m, valid).iter().map(|a| key::VALID.get(a) == 1).collect();
                assert_eq!(told, keys.iter().map(|k| k.valid).collect::<Vec<_>>());
            }
        }
        println!("{killed} killed, {kept} refused, {revoked} revoked");
        assert!(killed > 100 && kept > 100 && revoked > 10);
    }

    #[test]
    fn a_full_address_space_does_not_overflow() {
        let (mut m, _, mut keys, frames) = ready(9);
        let whole = Key { valid: true, access: 15, contiguous: true, length: u64::MAX, ..Key::default() };
        keys[0] = whole;
        keys[1] = Key { va: 0xffff_ffff_ffff_fc00, length: 0x400, shift: 12, contiguous: false, ..whole };
        load(&mut m, (0..2).map(|i| access(id::KEY, i, true, row(&keys[i]))).collect());
        let mut wants = vec![];
        for (key, va) in [(0u32, 0xffff_ffff_ffff_fc00u64), (256, 0xffff_ffff_ffff_fc00), (0, 0), (0, u64::MAX - 1)] {
            for (len, span) in [(0x3ff, 0x3ff), (0x400, 0x400), (0x400, 0x401), (1, 0xffff_ffff), (2, 2), (1, 1)] {
                wants.push(Want { key, va, len, span, pd: 0, qpn: 0, need: 0 });
            }
        }
        let (mut tx, mut k) = (Giver::new(&m, "tx_req", Stall::Never, 0), Taker::new(&m, "tx_chunk", Stall::Never, 0));
        wants.iter().for_each(|want| tx.send(message(want)));
        k.expect(wants.len() as u64);
        bench::run(&mut m, &mut [&mut tx, &mut k], 1000);
        let seen = check(&mut k, &wants, &keys, &frames);
        assert!(seen[0] > 5 && seen[cause::KEY_BOUNDS as usize] > 5, "{seen:?}");
    }

    #[test]
    fn latency_and_rate() {
        let (mut m, _, mut keys, frames) = ready(1);
        keys[0] = Key { valid: true, access: 15, contiguous: true, length: 1 << 40, ..Key::default() };
        load(&mut m, vec![access(id::KEY, 0, true, row(&keys[0]))]);
        keys[1] = Key { contiguous: false, shift: 12, length: 1 << 16, ..keys[0] };
        load(&mut m, vec![access(id::KEY, 1, true, row(&keys[1]))]);
        let run = |m: &mut Model, key: u32, len: u64, n: u64, both: bool| {
            let want = Want { key, va: 5, len, span: len, pd: 0, qpn: 0, need: 0 };
            let mut s = [Giver::new(m, "rx_req", Stall::Never, 0), Giver::new(m, "tx_req", Stall::Never, 0)];
            let mut k = [Taker::new(m, "rx_chunk", Stall::Never, 0), Taker::new(m, "tx_chunk", Stall::Never, 0)];
            for i in 0..if both { 2 } else { 1 } {
                (0..n).for_each(|_| s[i].send(message(&want)));
                k[i].expect(n);
            }
            let start = m.cycle();
            let ([a, b], [c, d]) = (&mut s, &mut k);
            bench::run(m, &mut [a, b, c, d], 10_000);
            let cycles = m.cycle() - 32 - start;
            k.iter_mut().zip([true, both]).for_each(|(k, used)| {
                check(k, &vec![want; if used { n as usize } else { 0 }], &keys, &frames);
            });
            cycles
        };
        let latency = [run(&mut m, 0, 64, 1, false) - 1, run(&mut m, 256, 64, 1, false) - 1];
        let one = run(&mut m, 0, 1024, 1000, false);
        let two = run(&mut m, 0, 1024, 1000, true);
        // These take at least 8 cycles each on any bus.
        let long = run(&mut m, 0, 4096, 1000, true);
        println!("latency {latency:?}; 1000 requests on one port: {one}, on both: {two}, of 4 KiB: {long} cycles");
        assert_eq!(latency, [4, 8], "of a contiguous region, and of one that is translated");
        assert!(one < 2000 && two < 2500 && long < 3500);
    }

    #[test]
    fn keys_are_void_after_reset() {
        let (mut m, mut rng, keys, frames) = ready(2);
        m.reset();
        let (mut tx, mut k) = (Giver::new(&m, "tx_req", Stall::Never, 0), Taker::new(&m, "tx_chunk", Stall::Never, 0));
        let wants: Vec<Want> = (0..200).map(|_| random_want(&mut rng, &keys)).collect();
        wants.iter().for_each(|want| tx.send(message(want)));
        k.expect(200);
        bench::run(&mut m, &mut [&mut tx, &mut k], 10_000);
        assert_eq!(check(&mut k, &wants, &[], &frames)[cause::KEY_INVALID as usize], 200);
    }
}
