//! Messages at random, sound and impossible ones, and how they stand in a WQE and in a landing row.

use super::*;

impl Bench {
    /// What all messages have, without data.
    fn random_head(&mut self, q: usize, opcode: u8, blocks: u16) -> Message {
        let rng = &mut self.rng;
        Message {
            index: self.pairs[q].posted,
            blocks,
            claims: blocks,
            opcode,
            signaled: rng.random_bool(0.5),
            solicited: rng.random(),
            fence: rng.random_bool(0.1),
            inline_data: None,
            sges: vec![],
            length: 0,
            va: rng.random(),
            rkey: rng.random(),
            imm: rng.random(),
            bad: None,
            began: None,
            changed: None,
        }
    }

    pub(super) fn random_message(&mut self, q: usize) -> Message {
        if self.pairs[q].raw {
            return self.random_frame(q);
        }
        let rng = &mut self.rng;
        let pair = &self.pairs[q];
        let opcode = [0, 0, 1, 2, 2, 3, 4, 4, 5, 6, 7, 8, 12][rng.random_range(0..13)];
        let answered = (send_op::READ..=send_op::FETCH_ADD).contains(&opcode) || opcode == send_op::ATOMIC_WRITE;
        let opcode = if answered && pair.max_reads == 0 { send_op::WRITE } else { opcode };
        if opcode == send_op::LOCAL_INV {
            let key = rng.random();
            return Message { length: key, fence: false, ..self.random_head(q, opcode, 1) };
        }
        if [send_op::COMPARE_SWAP, send_op::FETCH_ADD, send_op::ATOMIC_WRITE].contains(&opcode) {
            return self.random_atomic(q, opcode);
        }
        let inlines = opcode != send_op::READ && rng.random_bool(0.3);
        let mut sges: Vec<(u64, u32, u32)> = vec![];
        let mut length = 0;
        let mut inline_data = None;
        if inlines {
            length = rng.random_range(0..=224);
            let mut data = vec![0; length as usize];
            rng.fill_bytes(&mut data);
            inline_data = Some(data);
        } else {
            for _ in 0..rng.random_range(0..=4) {
                let most = match rng.random_range(0..20) {
                    0 if opcode == send_op::READ => 1 << rng.random_range(13..30),
                    0..4 => 20_000,
                    4..10 => 3000,
                    _ => 200,
                };
                let len = if rng.random_bool(0.2) { 0 } else { rng.random_range(0..=most) };
                sges.push((rng.random(), rng.random(), len));
                length += len;
            }
            if opcode == send_op::READ && rng.random_bool(0.02) {
                sges.truncate(3);
                let rest = (1 << 31) - sges.iter().map(|s| s.2).sum::<u32>();
                sges.push((rng.random(), rng.random(), rest));
                length = 1 << 31;
            }
        }
        let need = if inlines { (length as u16 + 32).div_ceil(64) } else { 1 + (sges.len() > 2) as u16 };
        let blocks = rng.random_range(need..=4.min(need + 1));
        Message { inline_data, sges, length, ..self.random_head(q, opcode, blocks) }
    }

    /// Its operands stand where the first SGE would; so do the 8 bytes of an atomic write, which has no other.
    pub(super) fn random_atomic(&mut self, q: usize, opcode: u8) -> Message {
        let rng = &mut self.rng;
        let puts = opcode == send_op::ATOMIC_WRITE;
        let mut operands = vec![0; if puts { 8 } else { 16 }];
        rng.fill_bytes(&mut operands);
        let blocks = rng.random_range(1..=2);
        Message {
            inline_data: Some(operands),
            sges: if puts { vec![] } else { vec![(0, 0, 0), (rng.random(), rng.random(), 8)] },
            length: 8,
            ..self.random_head(q, opcode, blocks)
        }
    }

    /// Posts a signaled WRITE of 512 bytes.
    pub(super) fn write_of_512(&mut self, q: usize) {
        let message = Message { opcode: send_op::WRITE, length: 512, signaled: true, ..self.random_frame(q) };
        let message = Message { sges: vec![(0x1000, 7, 512)], inline_data: None, blocks: 1, claims: 1, ..message };
        self.post(q, message);
    }

    /// A SEND of the raw QP: a frame of 14 to 9,216 bytes.
    pub(super) fn random_frame(&mut self, q: usize) -> Message {
        let rng = &mut self.rng;
        let inlines = rng.random_bool(0.3);
        let most = if inlines { 224 } else { [200, 9216][rng.random_range(0..2)] };
        let length: u32 = rng.random_range(14..=most);
        let mut data = vec![0; length as usize];
        rng.fill_bytes(&mut data);
        let mut cuts: Vec<u32> = (0..rng.random_range(0..4)).map(|_| rng.random_range(0..=length)).collect();
        cuts.extend([0, length]);
        cuts.sort_unstable();
        let sges: Vec<_> = cuts.windows(2).map(|c| (rng.random(), rng.random(), c[1] - c[0])).collect();
        let need = if inlines { (length as u16 + 32).div_ceil(64) } else { 1 + (sges.len() > 2) as u16 };
        Message {
            fence: false,
            inline_data: inlines.then_some(data),
            sges: if inlines { vec![] } else { sges },
            length,
            ..self.random_head(q, send_op::SEND, need)
        }
    }
}

pub(super) fn sge_bytes(sges: &[(u64, u32, u32)]) -> [u8; 64] {
    let mut bytes = [0; 64];
    for (i, (va, key, len)) in sges.iter().enumerate() {
        let entry = &mut bytes[16 * i..16 * i + 16];
        sge::VA.set(entry, *va);
        sge::LKEY.set(entry, *key as u64);
        sge::LENGTH.set(entry, *len as u64);
    }
    bytes
}

/// The row's SGEs are the message's; those beyond its count are empty, whatever else they hold.
pub(super) fn lands(row: &[u8], message: &Message) -> bool {
    // To an atomic write nothing comes back.
    message.opcode == send_op::ATOMIC_WRITE
        || message.reads()
            && (0..4).all(|i| {
                let entry = &row[16 * i..16 * i + 16];
                match message.sges.get(i) {
                    Some(s) if s.2 > 0 => {
                        (sge::VA.get(entry), sge::LKEY.get(entry), sge::LENGTH.get(entry))
                            == (s.0, s.1 as u64, s.2 as u64)
                    }
                    _ => sge::LENGTH.get(entry) == 0,
                }
            })
}

pub(super) fn send_wqe_head(wqe: &mut [u8; 256], m: &Message) {
    use abi::queue::send_wqe as w;
    w::OPCODE.set(wqe, m.opcode as u64);
    w::SIGNALED.set(wqe, m.signaled as u64);
    w::SOLICITED.set(wqe, m.solicited as u64);
    w::FENCE.set(wqe, m.fence as u64);
    w::INLINE.set(wqe, m.inline_data.is_some() as u64);
    w::BLOCKS.set(wqe, m.claims as u64);
    w::SGES.set(wqe, m.sges.len() as u64);
    w::IMM.set(wqe, m.imm as u64);
    w::REMOTE_VA.set(wqe, m.va);
    w::RKEY.set(wqe, m.rkey as u64);
    w::LENGTH.set(wqe, m.length as u64);
    let bytes = sge_bytes(&m.sges);
    wqe[32..32 + 16 * m.sges.len()].copy_from_slice(&bytes[..16 * m.sges.len()]);
    if let Some(data) = &m.inline_data {
        wqe[32..32 + data.len()].copy_from_slice(data);
    }
}

/// Makes a message impossible.
pub(super) fn spoil(rng: &mut ChaCha8Rng, m: &mut Message, raw: bool) {
    if raw {
        match rng.random_range(0..3) {
            0 => (m.opcode, m.bad) = (rng.random_range(1..=8), Some(cause::WQE_OPCODE)),
            1 if m.inline_data.is_some() => (m.length, m.bad) = (rng.random_range(0..14), Some(cause::WQE_LENGTH)),
            2 if m.inline_data.is_none() => {
                let length = [rng.random_range(0..14), rng.random_range(9217..40_000)][rng.random_range(0..2)];
                (m.sges, m.length) = (vec![(0, 0, length)], length);
                m.bad = Some(cause::WQE_LENGTH);
            }
            _ => {}
        }
        return;
    }
    match if m.local() { [0, 4][rng.random_range(0..2)] } else { rng.random_range(0..6) } {
        0 => (m.opcode, m.bad) = (rng.random_range(16..=255), Some(cause::WQE_OPCODE)),
        1 if m.inline_data.is_none() => (m.length, m.bad) = (m.length.wrapping_add(1), Some(cause::WQE_LENGTH)),
        1 | 2 if m.atomic() || m.opcode == send_op::ATOMIC_WRITE => {
            if rng.random() || !m.atomic() {
                m.length = rng.random_range(9..100);
            } else {
                m.sges[1].2 = [0, 4, 16][rng.random_range(0..3)];
            }
            m.bad = Some(cause::WQE_LENGTH);
        }
        2 if m.inline_data.is_some() => (m.length, m.bad) = (m.blocks as u32 * 64 - 31, Some(cause::WQE_LENGTH)),
        3 if m.sges.len() == 2 && m.inline_data.is_none() => {
            m.sges.push((0, 0, 0));
            (m.blocks, m.claims) = (1, 1);
            m.bad = Some(cause::WQE_FORMAT);
        }
        4 => (m.claims, m.bad) = (0, Some(cause::WQE_FORMAT)),
        5 if m.opcode == send_op::READ => {
            m.inline_data = Some(vec![]);
            m.bad = Some(cause::WQE_FORMAT);
        }
        _ => {}
    }
}
