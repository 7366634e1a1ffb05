//! Queue pairs: their attributes, the way from state to state, and the rows that the engines work by.
//!
//! The attributes of a QP are kept as MODIFY_QP and QUERY_QP carry them; rows are made of them when they are due.
//!
//! ```text
//!              QP_SEND         QP_RECV         QP_ADDRESS    QP_STATE (last)
//! to INIT      load, PSN 0     load, PSN 0                   INIT
//! to RTR                       load PSN        all           RTR
//! to RTS       load, PSN       if attributes                 RTS
//! SQE to RTS   resume, behind  if attributes                 RTS
//!              a drain
//! to ERR                                                     ERR, a drain behind
//! to RESET     cleared         cleared                       RESET (first), a drain between and behind
//! in a state   if attributes   if attributes   if address
//! ```
//! A rate (PACE) ends when the send queue is loaded.
//! In INIT both queues are loaded, so that receives can be posted, and so that ERR finds queues to flush.

use crate::{
    GIDS, Hardware, Outcome, Plane, Refused, check,
    groups::{group_mac, is_group},
    objects::{Gid, held, is_host, is_unicast, ring_fits},
    supported,
    transitions::{UNSUPPORTED, rule},
    words::{Block, get, get_wide, put, put_wide, set, up_to},
};
use abi::{
    Field,
    bar::PACES,
    cmd::{BURST, QKEY, QUOTA, attr, create_ah, create_qp, head, modify_qp as m, query_qp, result},
    queue::{MAX_RECV_LOG2, MAX_SGE, WQE_BLOCK, event},
    table::{NOBODY, id, pace, qp_address, qp_recv, qp_recv_read, qp_send, qp_state, qp_state_row, qp_type},
    wire::qkey::{PRIVILEGED, QP1},
};

/// The one P_Key of the port: full member of the default partition.
const PKEY: u32 = 0xffff;
/// Headers that a port MTU holds beside the path MTU.
const HEADERS: u32 = 80;
/// QP 0 is the raw queue, 1 the general service queue of IBTA; both are asked for by type.
pub(crate) const QP_FIRST: u32 = 2;
/// The general service queue pair.
const GSI: u32 = 1;
/// Kind of a shared receive queue, which has the place of a QP.
pub(crate) const SRQ: u8 = 0xff;
/// First word of a MODIFY_QP command that is kept.
const FIRST: usize = m::MASK.lsb / 32;

/// First word of the destination IP.
const DIP: usize = m::DIP_LOW.lsb / 32;
const ADDRESS_WORDS: usize = up_to(qp_address::VALID);
pub(crate) const SEND_WORDS: usize = up_to(qp_send::INDEX);
const RECV_WORDS: usize = up_to(qp_recv::SIP_HIGH);

/// Words `FIRST..16` of MODIFY_QP; the mask names the attributes that have been set since RESET.
pub(crate) type Attributes = [u32; 16 - FIRST];

/// A queue pair.
#[derive(Clone, Copy)]
pub struct Qp {
    /// Owner plus 1; 0: there is no such QP.
    pub(crate) holder: u8,
    /// `qp_type`, or `SRQ`.
    pub(crate) kind: u8,
    pub(crate) pd: u8,
    /// Log2 of the send ring, and in the upper half of the receive ring.
    pub(crate) logs: u8,
    pub(crate) send_cqn: u8,
    pub(crate) recv_cqn: u8,
    /// Its receives have one SGE.
    pub(crate) one_sge: bool,
    /// Left RESET since it was last brought there.
    pub(crate) loaded: bool,
    pub(crate) sq_base: [u32; 2],
    /// Of a QP that takes its receives from a shared queue: twice its number plus 1, and whether LAST_WQE has been raised.
    pub(crate) rq_base: [u32; 2],
    pub(crate) attributes: Attributes,
}

impl Qp {
    /// None.
    pub const NONE: Self = Qp {
        holder: 0,
        kind: 0,
        pd: 0,
        logs: 0,
        send_cqn: 0,
        recv_cqn: 0,
        one_sge: false,
        loaded: false,
        sq_base: [0; 2],
        rq_base: [0; 2],
        attributes: [0; 16 - FIRST],
    };

    /// Type in its rows; that of a shared receive queue says nothing.
    fn row_type(&self) -> u32 {
        if self.kind == SRQ { 0 } else { self.kind as u32 }
    }

    /// Holder of a shared receive queue; 0: it is none.
    pub(crate) fn srq_holder(&self) -> u8 {
        if self.kind == SRQ { self.holder } else { 0 }
    }

    /// Of a shared receive queue: how many QPs take receives from it.
    pub(crate) fn srq_users(&mut self) -> &mut u32 {
        &mut self.sq_base[0]
    }

    /// The shared receive queue that it takes receives from. (A ring begins at a multiple of 64.)
    fn srq(&self) -> Option<usize> {
        (self.rq_base[0] & 1 != 0).then_some(self.rq_base[0] as usize >> 1)
    }
}

/// An address handle.
#[derive(Clone, Copy)]
pub struct Handle {
    /// Owner plus 1; 0: there is no such handle.
    pub(crate) holder: u8,
    pd: u8,
    gid: u8,
}

impl Handle {
    /// None.
    pub const NONE: Self = Handle { holder: 0, pd: 0, gid: 0 };
}

/// A field of MODIFY_QP in [`Attributes`].
#[inline(always)]
const fn kept(f: Field) -> Field {
    Field { lsb: f.lsb - 32 * FIRST, ..f }
}

#[inline(always)]
fn attribute(a: &Attributes, f: Field) -> u32 {
    get(a, kept(f))
}

/// Copies a field of a command if it is given. Inlined, so that the field folds to constants: five times as fast.
#[inline(always)]
fn take(to: &mut Attributes, c: &Block, given: u32, f: Field) {
    if given != 0 {
        set(to, kept(f), get(c, f));
    }
}

fn lowest(bits: u32) -> u32 {
    let mut n = 0;
    while bits >> n & 1 == 0 {
        n += 1;
    }
    n
}

/// What may load a queue in a row.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Loads {
    /// Attributes only.
    Nothing,
    Psn,
    Queue,
}

impl Plane<'_> {
    pub(crate) fn create_qp(&mut self, c: &Block, owner: u8) -> Outcome<u32> {
        let kind = get(c, create_qp::TYPE) as u8;
        let is_gsi = kind == qp_type::GSI;
        supported(kind <= qp_type::RAW || is_gsi, create_qp::TYPE)?;
        if is_gsi && owner != 0 {
            return Err(Refused::at(result::NOT_OWNER, head::OWNER));
        }
        let kind = if is_gsi { qp_type::UD } else { kind };
        let logs = [get(c, create_qp::SQ_LOG2) as u8, get(c, create_qp::RQ_LOG2) as u8];
        let sges = get(c, create_qp::RQ_SGES);
        check((1..=MAX_SGE as u32).contains(&sges), create_qp::RQ_SGES)?;
        check(logs[1] as u32 <= MAX_RECV_LOG2, create_qp::RQ_LOG2)?;
        let pd = self.pds.find(get(c, create_qp::PD), owner, create_qp::PD)?;
        let send_cqn = self.cqs.find(get(c, create_qp::SEND_CQN), owner, create_qp::SEND_CQN)?;
        let recv_cqn = self.cqs.find(get(c, create_qp::RECV_CQN), owner, create_qp::RECV_CQN)?;
        for (base, log2) in [(create_qp::SQ_BASE, logs[0]), (create_qp::RQ_BASE, logs[1])] {
            check(ring_fits(get_wide(c, base), (WQE_BLOCK as u32) << log2, WQE_BLOCK as u32), base)?;
        }
        let srq = if get(c, create_qp::SHARED) != 0 { Some(self.srq_of(c, kind, pd, owner)?) } else { None };
        let special = if kind == qp_type::RAW { 0 } else { GSI };
        let vacant = if kind == qp_type::RAW || is_gsi {
            Some(special).filter(|n| self.qps[*n as usize].holder == 0)
        } else {
            self.vacant_qp()
        };
        let number = vacant.ok_or(Refused::new(result::NO_ROOM, 0))?;
        if number >= QP_FIRST {
            self.qp_turn.take(number);
        }
        if let Some(n) = srq {
            *self.qps[n].srq_users() += 1;
        }
        self.pds.items[pd].refs += 1;
        self.cqs.items[send_cqn].refs += 1;
        self.cqs.items[recv_cqn].refs += 1;
        let word = |f: Field| [c[f.lsb / 32], c[f.lsb / 32 + 1]];
        self.qps[number as usize] = Qp {
            holder: owner + 1,
            kind,
            pd: pd as u8,
            logs: logs[0] | logs[1] << 4,
            send_cqn: send_cqn as u8,
            recv_cqn: recv_cqn as u8,
            one_sge: sges == 1,
            sq_base: word(create_qp::SQ_BASE),
            rq_base: srq.map_or(word(create_qp::RQ_BASE), |n| [n as u32 * 2 + 1, 0]),
            ..Qp::NONE
        };
        Ok(number)
    }

    /// A number for a QP or a shared receive queue.
    pub(crate) fn vacant_qp(&self) -> Option<u32> {
        self.qp_turn.find(QP_FIRST, self.limits.qps, |i| self.qps[i].holder == 0)
    }

    pub(crate) fn find_qp(&self, number: u32, owner: u8) -> Outcome<usize> {
        held(self.qps.get(number as usize).map_or(0, |q| q.holder - q.srq_holder()), owner, head::NUMBER)?;
        Ok(number as usize)
    }

    pub(crate) fn modify_qp(&mut self, hw: &mut impl Hardware, c: &Block, owner: u8) -> Outcome {
        let n = self.find_qp(get(c, head::NUMBER), owner)?;
        let qp = &self.qps[n];
        let mask = get(c, m::MASK);
        let from = state(hw, n);
        let to = if mask & attr::STATE != 0 { get(c, m::STATE) as u8 } else { from };
        check(to <= qp_state::ERR, m::STATE)?;
        let rule = rule(qp.kind, from, to).ok_or(Refused::new(result::BAD_TRANSITION, 0))?;
        let forbidden = mask & !(rule.required | rule.optional | attr::STATE);
        if forbidden != 0 {
            return Err(Refused::new(result::FORBIDDEN_ATTRIBUTE, lowest(forbidden)));
        }
        let missing = rule.required & !mask;
        if missing != 0 {
            return Err(Refused::new(result::MISSING_ATTRIBUTE, lowest(missing)));
        }
        let unsupported = mask & UNSUPPORTED;
        if unsupported != 0 {
            return Err(Refused::new(result::UNSUPPORTED, m::MASK.lsb as u32 + lowest(unsupported)));
        }
        check(mask & attr::CUR_STATE == 0 || get(c, m::CUR_STATE) as u8 == from, m::CUR_STATE)?;

        if to == qp_state::RESET {
            self.reset(hw, n);
            return Ok(());
        }
        self.judge(c, mask, hw.port() >> 16, false)?;
        if mask & attr::QKEY != 0 {
            let qkey = get(c, QKEY);
            check(if n == GSI as usize { qkey == QP1 } else { qkey < PRIVILEGED || owner == 0 }, QKEY)?;
        }

        if (from, to) == (qp_state::SQE, qp_state::RTS) {
            // Nothing of before is under way, and PSNs go on.
            hw.drain();
            let mut row = [0; 3];
            hw.fetch(id::QP_SEND, n as u32, &mut row);
            set(&mut self.qps[n].attributes, kept(m::SQ_PSN), get(&row, qp_send::PSN));
        }
        if to != qp_state::SQD {
            self.qps[n].attributes[0] &= !attr::EN_SQD_ASYNC_NOTIFY;
        }
        self.draining |= mask & attr::EN_SQD_ASYNC_NOTIFY != 0;
        if mask & attr::AV != 0 {
            self.leave_gid(n);
            self.gids[get(c, m::GID) as usize].refs += 1;
        }
        self.merge(n, c, mask);
        if self.qps[n].kind == qp_type::UD && from == qp_state::RESET {
            // A datagram may be as long as the port's MTU lets it.
            let code = (1..=5).rev().find(|code| path_fits(*code, hw.port() >> 16)).unwrap_or(1);
            set(&mut self.qps[n].attributes, kept(m::PATH_MTU), code);
        }
        self.write_rows(hw, n, (from, to), mask, get(c, m::SQ_INDEX));
        if mask & attr::RATE_LIMIT != 0 {
            // Behind the row that loads the queue.
            const { assert!(pace::QUOTA.lsb == 0 && pace::BURST.lsb == 32) };
            hw.commit(id::PACE, n as u32, &c[QUOTA.lsb / 32..][..2]);
        }
        Ok(())
    }

    /// Raises the event of each send queue that has drained, if it is still asked for: behind the completions.
    pub fn watch_drains(&mut self, hw: &mut impl Hardware) {
        if !core::mem::replace(&mut self.draining, false) {
            return;
        }
        for n in 0..self.qps.len() {
            if self.qps[n].attributes[0] & attr::EN_SQD_ASYNC_NOTIFY == 0 {
                continue;
            }
            let mut row = [0; 3];
            hw.fetch(id::QP_SEND, n as u32, &mut row);
            let waits = state(hw, n) == qp_state::SQD;
            if waits && get(&row, qp_send::DRAINED) == 0 {
                self.draining = true;
                continue;
            }
            self.qps[n].attributes[0] &= !attr::EN_SQD_ASYNC_NOTIFY;
            if waits && self.eqs.items[0].holder != 0 {
                hw.drain();
                hw.event(0, event::SQ_DRAINED, n as u32, 0);
            }
        }
    }

    /// Whether the value of each attribute in `mask` is possible. Only an address handle leads to a multicast group.
    #[inline(never)]
    fn judge(&self, c: &Block, mask: u32, port_mtu: u32, handle: bool) -> Outcome {
        let given = |bit: u32| mask & bit != 0;
        if given(attr::PKEY_INDEX) {
            check(get(c, m::PKEY_INDEX) == 0, m::PKEY_INDEX)?;
        }
        if given(attr::PORT) {
            check(get(c, m::PORT) == 1, m::PORT)?;
        }
        if given(attr::PATH_MTU) {
            let code = get(c, m::PATH_MTU);
            check((1..=5).contains(&code) && path_fits(code, port_mtu), m::PATH_MTU)?;
        }
        if given(attr::DEST_QPN) {
            // 0 and 1 are management queue pairs, all ones is multicast.
            check((2..0xff_ffff).contains(&get(c, m::DEST_QPN)), m::DEST_QPN)?;
        }
        if given(attr::MAX_QP_RD_ATOMIC) {
            check(get(c, m::MAX_READS) <= self.limits.reads, m::MAX_READS)?;
        }
        if given(attr::MAX_DEST_RD_ATOMIC) {
            check(get(c, m::MAX_DEST_READS) <= self.limits.reads, m::MAX_DEST_READS)?;
        }
        if given(attr::RATE_LIMIT) {
            supported(self.limits.words[1] & PACES != 0, QUOTA)?;
            check(get(c, BURST) << 22 >= get(c, QUOTA), BURST)?;
        }
        if given(attr::AV) {
            let index = get(c, m::GID) as usize;
            let gid = if index < GIDS { self.gids[index] } else { Gid::NONE };
            if !gid.valid {
                return Err(Refused::at(result::NO_OBJECT, m::GID));
            }
            check(get(c, m::TRAFFIC_CLASS) & 3 != 3, m::TRAFFIC_CLASS)?;
            check(get(c, m::HOP_LIMIT) != 0, m::HOP_LIMIT)?;
            let (mac, ip) = (get_wide(c, m::DMAC), &c[DIP..DIP + 4]);
            if handle && is_group(gid.is_ip6, ip) {
                check(mac == group_mac(gid.is_ip6, ip), m::DMAC)?;
            } else {
                check(is_unicast(mac), m::DMAC)?;
                check(is_host(gid.is_ip6, ip), m::DIP_LOW)?;
            }
        }
        Ok(())
    }

    /// Takes the attributes of `mask` over.
    fn merge(&mut self, n: usize, c: &Block, mask: u32) {
        let to = &mut self.qps[n].attributes;
        to[0] |= mask & !(attr::STATE | attr::CUR_STATE);
        take(to, c, mask & attr::ACCESS_FLAGS, m::ACCESS);
        take(to, c, mask & attr::PORT, m::PORT);
        take(to, c, mask & attr::PATH_MTU, m::PATH_MTU);
        take(to, c, mask & attr::DEST_QPN, m::DEST_QPN);
        take(to, c, mask & attr::RQ_PSN, m::RQ_PSN);
        take(to, c, mask & attr::SQ_PSN, m::SQ_PSN);
        take(to, c, mask & attr::MAX_QP_RD_ATOMIC, m::MAX_READS);
        take(to, c, mask & attr::MAX_DEST_RD_ATOMIC, m::MAX_DEST_READS);
        take(to, c, mask & attr::MIN_RNR_TIMER, m::MIN_RNR_TIMER);
        take(to, c, mask & attr::TIMEOUT, m::TIMEOUT);
        take(to, c, mask & attr::RETRY_CNT, m::RETRY_CNT);
        take(to, c, mask & attr::RNR_RETRY, m::RNR_RETRY);
        take(to, c, mask & attr::QKEY, QKEY);
        if mask & attr::AV != 0 {
            take_address(to, c, self.gids[get(c, m::GID) as usize].is_ip6);
        }
    }

    /// The QP no longer refers to its GID.
    fn leave_gid(&mut self, n: usize) {
        let a = &self.qps[n].attributes;
        if a[0] & attr::AV != 0 {
            self.gids[attribute(a, m::GID) as usize].refs -= 1;
        }
    }

    fn write_rows(&mut self, hw: &mut impl Hardware, n: usize, step: (u8, u8), mask: u32, index: u32) {
        use qp_state::{INIT, RESET, RTR, RTS, SQE};
        let send = attr::TIMEOUT | attr::RETRY_CNT | attr::RNR_RETRY | attr::MAX_QP_RD_ATOMIC;
        let recv = attr::ACCESS_FLAGS | attr::QKEY | attr::MIN_RNR_TIMER | attr::MAX_DEST_RD_ATOMIC | attr::AV;
        let if_any = |attributes: u32| (mask & attributes != 0).then_some(Loads::Nothing);
        let (send, recv) = match step {
            (RESET, INIT) => (Some(Loads::Queue), Some(Loads::Queue)),
            (INIT, RTR) => (None, Some(Loads::Psn)),
            (RTR, RTS) => (Some(Loads::Queue), if_any(recv)),
            (SQE, RTS) => (Some(Loads::Psn), if_any(recv)),
            _ => (if_any(send), if_any(recv)),
        };
        let qp = &mut self.qps[n];
        qp.loaded = true;
        let owner = qp.holder as u32 - 1;
        if mask & attr::AV != 0 {
            let a = &self.qps[n].attributes;
            let row = address_row(a, self.gids[attribute(a, m::GID) as usize].is_ip6);
            hw.commit(id::QP_ADDRESS, n as u32, &row);
        }
        if let Some(loads) = send {
            let mut row = self.send_row(n, loads, owner);
            if loads == Loads::Psn {
                put(&mut row, qp_send::INDEX, index);
            }
            hw.commit(id::QP_SEND, n as u32, &row);
        }
        if let Some(loads) = recv {
            hw.commit(id::QP_RECV, n as u32, &self.recv_row(n, loads, owner));
        }
        if step.0 != step.1 {
            let mut row = state_row(step.1);
            put(&mut row, qp_state_row::RESUME, (step == (SQE, RTS)) as u32);
            hw.commit(id::QP_STATE, n as u32, &row);
        }
        if step.1 == qp_state::ERR {
            // The driver flushes what is left when this is answered: no completion of the device may come behind.
            hw.drain();
            let qp = &mut self.qps[n];
            if qp.srq().is_some() && core::mem::replace(&mut qp.rq_base[1], 1) == 0 && self.eqs.items[0].holder != 0 {
                hw.event(0, event::LAST_WQE, n as u32, 0);
            }
        }
    }

    pub(crate) fn create_ah(&mut self, hw: &mut impl Hardware, c: &Block, owner: u8) -> Outcome<u32> {
        let pd = self.pds.find(get(c, create_ah::PD), owner, create_ah::PD)?;
        self.judge(c, attr::AV, 0, true)?;
        let number = self
            .ah_turn
            .find(0, self.ahs.len() as u32, |i| self.ahs[i].holder == 0)
            .ok_or(Refused::new(result::NO_ROOM, 0))?;
        let gid = get(c, m::GID) as usize;
        let mut a = [0; 16 - FIRST];
        let is_ip6 = self.gids[gid].is_ip6;
        take_address(&mut a, c, is_ip6);
        let mut row = address_row(&a, is_ip6);
        put(&mut row, qp_address::PD, pd as u32);
        put(&mut row, qp_address::VALID, 1);
        hw.commit(id::AH, number, &row);
        self.ah_turn.take(number);
        self.pds.items[pd].refs += 1;
        self.gids[gid].refs += 1;
        self.ahs[number as usize] = Handle { holder: owner + 1, pd: pd as u8, gid: gid as u8 };
        Ok(number)
    }

    pub(crate) fn destroy_ah(&mut self, hw: &mut impl Hardware, number: u32, owner: u8) -> Outcome {
        held(self.ahs.get(number as usize).map_or(0, |a| a.holder), owner, head::NUMBER)?;
        let handle = core::mem::replace(&mut self.ahs[number as usize], Handle::NONE);
        // No send names it from now on; those that did have left behind the drain.
        hw.commit(id::AH, number, &[0; ADDRESS_WORDS]);
        hw.drain();
        self.pds.items[handle.pd as usize].refs -= 1;
        self.gids[handle.gid as usize].refs -= 1;
        Ok(())
    }

    pub(crate) fn send_row(&self, n: usize, loads: Loads, owner: u32) -> [u32; SEND_WORDS] {
        let qp = &self.qps[n];
        let a = &qp.attributes;
        let mut row = [0; SEND_WORDS];
        put(&mut row, qp_send::TYPE, qp.row_type());
        put(&mut row, qp_send::RESUME, (loads == Loads::Psn) as u32);
        put(&mut row, qp_send::MTU, mtu(qp));
        put(&mut row, qp_send::LOAD, (loads == Loads::Queue) as u32);
        put(&mut row, qp_send::PD, qp.pd as u32);
        put(&mut row, qp_send::CQN, qp.send_cqn as u32);
        put(&mut row, qp_send::PSN, attribute(a, m::SQ_PSN));
        // Owner 0's datagrams may name privileged Q_Keys.
        let entitled = qp.kind == qp_type::UD && qp.holder == 1;
        put(&mut row, qp_send::MAX_READS, attribute(a, m::MAX_READS) | entitled as u32);
        put(&mut row, qp_send::LOG2_BLOCKS, (qp.logs & 15) as u32);
        put(&mut row, qp_send::RETRY_COUNT, attribute(a, m::RETRY_CNT));
        put(&mut row, qp_send::RNR_RETRY, attribute(a, m::RNR_RETRY));
        put(&mut row, qp_send::TIMEOUT, attribute(a, m::TIMEOUT));
        put(&mut row, qp_send::OWNER, owner);
        row[qp_send::BASE.lsb / 32..][..2].copy_from_slice(&qp.sq_base);
        row
    }

    #[inline(never)]
    pub(crate) fn recv_row(&self, n: usize, loads: Loads, owner: u32) -> [u32; RECV_WORDS] {
        let qp = &self.qps[n];
        let a = &qp.attributes;
        let mut row = [0; RECV_WORDS];
        put(&mut row, qp_recv::TYPE, qp.row_type());
        put(&mut row, qp_recv::LOAD_PSN, (loads == Loads::Psn) as u32);
        put(&mut row, qp_recv::MTU, mtu(qp));
        put(&mut row, qp_recv::LOAD, (loads == Loads::Queue) as u32);
        put(&mut row, qp_recv::PD, qp.pd as u32);
        put(&mut row, qp_recv::CQN, qp.recv_cqn as u32);
        put(&mut row, qp_recv::PSN, attribute(a, m::RQ_PSN));
        put(&mut row, qp_recv::MAX_DEST_READS, attribute(a, m::MAX_DEST_READS));
        put(&mut row, qp_recv::LOG2_BLOCKS, (qp.logs >> 4) as u32);
        put(&mut row, qp_recv::MIN_RNR_TIMER, attribute(a, m::MIN_RNR_TIMER));
        put(&mut row, qp_recv::ONE_SGE, qp.one_sge as u32);
        put(&mut row, qp_recv::ACCESS, attribute(a, m::ACCESS));
        if let Some(srq) = qp.srq() {
            // The queue of its own number has no ring, and takes no doorbells.
            put(&mut row, qp_recv::SHARED, 1);
            put(&mut row, qp_recv::QUEUE, srq as u32);
            put(&mut row, qp_recv::OWNER, NOBODY as u32);
        } else {
            put(&mut row, qp_recv::OWNER, owner);
            row[qp_recv::BASE.lsb / 32..][..2].copy_from_slice(&qp.rq_base);
        }
        put(&mut row, qp_recv::PKEY, PKEY);
        row[qp_recv::SIP_LOW.lsb / 32..][..4].copy_from_slice(&a[DIP - FIRST..DIP - FIRST + 4]);
        row
    }

    /// Brings a QP to RESET: nothing of it is under way in the device, or will touch its rings, when this returns.
    #[inline(never)]
    pub(crate) fn reset(&mut self, hw: &mut impl Hardware, n: usize) {
        self.leave_gid(n);
        if self.qps[n].loaded {
            hw.commit(id::QP_STATE, n as u32, &state_row(qp_state::RESET));
            self.close_windows(hw, n as u32);
            // Doorbells are refused first; the queues forget their rings when no fetch is under way any more.
            hw.commit(id::QP_SEND, n as u32, &self.send_row(n, Loads::Nothing, NOBODY as u32));
            hw.commit(id::QP_RECV, n as u32, &self.recv_row(n, Loads::Nothing, NOBODY as u32));
            hw.drain();
            let mut row = [0; SEND_WORDS];
            put(&mut row, qp_send::LOAD, 1);
            put(&mut row, qp_send::OWNER, NOBODY as u32);
            hw.commit(id::QP_SEND, n as u32, &row);
            let mut row = [0; RECV_WORDS];
            put(&mut row, qp_recv::LOAD, 1);
            put(&mut row, qp_recv::OWNER, NOBODY as u32);
            hw.commit(id::QP_RECV, n as u32, &row);
            // A doorbell of before may have begun a fetch until then.
            hw.drain();
        }
        self.qps[n].loaded = false;
        if self.qps[n].srq().is_some() {
            self.qps[n].rq_base[1] = 0;
        }
        self.qps[n].attributes = [0; 16 - FIRST];
    }

    /// State and PSNs are the engines', all else is as it was set. The state is the same before and behind the PSNs: engines move
    /// a QP to SQE and ERR only, so this ends.
    pub(crate) fn query_qp(&self, hw: &mut impl Hardware, number: u32, owner: u8, a: &mut Block) -> Outcome {
        let n = self.find_qp(number, owner)?;
        let qp = &self.qps[n];
        a[FIRST..].copy_from_slice(&qp.attributes);
        let mut now = state(hw, n);
        if qp.loaded {
            loop {
                let mut row = [0; 3];
                hw.fetch(id::QP_SEND, number, &mut row);
                set(a, m::SQ_PSN, get(&row, qp_send::PSN));
                hw.fetch(id::QP_RECV, number, &mut row);
                set(a, m::RQ_PSN, get(&row, qp_recv_read::PSN));
                const { assert!(query_qp::TAKEN_INDEX.lsb == 32 && query_qp::TAKEN.lsb == 32 + 16) };
                a[1] = row[0] >> qp_recv_read::TAKEN_INDEX.lsb & 0x1_ffff;
                let before = now;
                now = state(hw, n);
                if now == before {
                    break;
                }
            }
        }
        set(a, m::STATE, now as u32);
        Ok(())
    }

    pub(crate) fn destroy_qp(&mut self, hw: &mut impl Hardware, number: u32, owner: u8) -> Outcome {
        let n = self.find_qp(number, owner)?;
        if self.qps[n].kind == qp_type::UD {
            for at in 0..self.groups.len() {
                self.leave(hw, at, n as u32);
            }
        }
        self.reset(hw, n);
        if let Some(srq) = self.qps[n].srq() {
            *self.qps[srq].srq_users() -= 1;
        }
        let qp = &mut self.qps[n];
        qp.holder = 0;
        self.pds.items[qp.pd as usize].refs -= 1;
        self.cqs.items[qp.send_cqn as usize].refs -= 1;
        self.cqs.items[qp.recv_cqn as usize].refs -= 1;
        Ok(())
    }
}

/// Takes the addresses of a command over.
#[inline(never)]
fn take_address(to: &mut Attributes, c: &Block, is_ip6: bool) {
    take(to, c, 1, m::GID);
    take(to, c, 1, m::TRAFFIC_CLASS);
    take(to, c, 1, m::HOP_LIMIT);
    take(to, c, 1, m::PRIORITY);
    take(to, c, 1, m::FLOW_LABEL);
    // DMAC and source port fill two words.
    const DMAC: usize = m::DMAC.lsb / 32;
    const { assert!(m::SPORT.lsb == m::DMAC.lsb + m::DMAC.bits && m::SPORT.lsb + m::SPORT.bits == 32 * (DMAC + 2)) };
    to[DMAC - FIRST] = c[DMAC];
    to[DMAC - FIRST + 1] = c[DMAC + 1];
    for i in 0..4 {
        to[DIP - FIRST + i] = if is_ip6 || i == 0 { c[DIP + i] } else { 0 };
    }
}

#[inline(never)]
fn address_row(a: &Attributes, is_ip6: bool) -> [u32; ADDRESS_WORDS] {
    let mut row = [0; ADDRESS_WORDS];
    put_wide(&mut row, qp_address::DMAC, get_wide(a, kept(m::DMAC)));
    put(&mut row, qp_address::GID, attribute(a, m::GID));
    put(&mut row, qp_address::TRAFFIC_CLASS, attribute(a, m::TRAFFIC_CLASS));
    put_wide(&mut row, qp_address::DIP_LOW, get_wide(a, kept(m::DIP_LOW)));
    put_wide(&mut row, qp_address::DIP_HIGH, get_wide(a, kept(m::DIP_HIGH)));
    put(&mut row, qp_address::SPORT, attribute(a, m::SPORT));
    put(&mut row, qp_address::HOP_LIMIT, attribute(a, m::HOP_LIMIT));
    put(&mut row, qp_address::IS_IP6, is_ip6 as u32);
    put(&mut row, qp_address::PRIORITY, attribute(a, m::PRIORITY));
    put(&mut row, qp_address::DEST_QPN, attribute(a, m::DEST_QPN));
    put(&mut row, qp_address::PKEY, PKEY);
    put(&mut row, qp_address::FLOW_LABEL, attribute(a, m::FLOW_LABEL));
    row
}

/// A port of this MTU holds packets of a path MTU code.
fn path_fits(code: u32, port_mtu: u32) -> bool {
    (128 << code) + HEADERS <= port_mtu
}

/// Path MTU code; raw frames are as long as the port takes them.
fn mtu(qp: &Qp) -> u32 {
    if qp.kind == qp_type::RAW { 5 } else { attribute(&qp.attributes, m::PATH_MTU) }
}

pub(crate) fn state_row(state: u8) -> [u32; 1] {
    let mut row = [0];
    put(&mut row, qp_state_row::STATE, state as u32);
    row
}

/// The state as it stands: an engine may have moved the QP to ERR.
pub(crate) fn state(hw: &mut impl Hardware, n: usize) -> u8 {
    let mut row = [0; 1];
    hw.fetch(id::QP_STATE, n as u32, &mut row);
    get(&row, qp_state_row::STATE) as u8
}
