//! What a QP owes its peer, and how a reply changes it. `respond` says when.

use crate::msg::*;
use hdl::prelude::*;

/// What firmware sets.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Attributes {
    pub mtu: Bits<3>,
    pub pd: Bits<16>,
}

/// What a QP owes.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Debt {
    /// READs to be answered, from the head's slot on.
    pub count: Bits<5>,
    /// Those at the end that were not asked for before: of those in front of them the peer may have had the answer.
    pub fresh: Bits<5>,
    /// Fresh READs answered, free-running: the responder has a copy.
    pub answered: Bits<8>,
    /// Next PSN of the head READ, if `placed`; else its first.
    pub psn: Psn,
    pub placed: Bit,
    /// A frame of this response went out: the next is not FIRST.
    pub begun: Bit,
    /// The head READ was asked for before.
    pub again: Bit,
    /// An ACK or NAK is pending.
    pub ack: Bit,
    pub ack_psn: Psn,
    pub ack_msn: Bits<24>,
    pub ack_syndrome: Bits<8>,
    /// A READ could not be read: after the NAK the QP says nothing more.
    pub silent: Bit,
    /// Epoch of the READ responses.
    pub epoch: Bits<8>,
    /// READ responses went out; all of them lie below this number in the transmit ring.
    pub framed: Bit,
    pub frame: Bits<16>,
}

/// The READ resources that are owed: the first, and the one behind the last.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Slots {
    pub head: Bits<4>,
    pub tail: Bits<4>,
}

/// How a reply stands to what its QP owes.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Standing {
    /// A READ behind those that are owed: it is answered behind them.
    pub joins: Bit,
    /// An ACK or NAK that is not older than the pending one.
    pub newer: Bit,
    /// It lies before what is to be sent next.
    pub back: Bit,
}

/// See [`Standing`]. `follows`: its READ resource is the one behind the last that is owed.
#[hdl_fn]
pub fn standing(debt: Debt, reply: Reply, follows: Bit) -> Standing {
    Standing {
        joins: debt.count.any() && !debt.count.get_bit(4) && follows,
        newer: !debt.ack || !(reply.psn - debt.ack_psn).get_bit(23),
        back: (reply.psn - debt.psn).get_bit(23),
    }
}

/// What QP owes after a reply has come in.
#[hdl_fn]
pub fn owe(debt: Debt, reply: Reply, standing: Standing) -> Debt {
    let mut now = debt;
    let joins = standing.joins;
    if reply.read {
        // Begins here, if it does not go on. Fresh READs that are dropped come again as duplicates.
        now.count = if joins { debt.count + 1 } else { 1.into() };
        now.fresh = if reply.again {
            0.into()
        } else if joins {
            debt.fresh + 1
        } else {
            1.into()
        };
        if !joins {
            now.psn = reply.psn;
            now.placed = true;
            now.begun = false;
            now.again = false;
            if restarts(reply, standing) {
                now.epoch = debt.epoch + 1;
            }
        }
        if reply.again {
            now.again = true;
        }
        if !joins || reply.again {
            now.answered = debt.answered + debt.fresh.cast::<8>();
        }
        if !reply.again {
            now.ack = false;
        }
    } else if standing.newer {
        now.ack = true;
        now.ack_psn = reply.psn;
        now.ack_msn = reply.msn;
        now.ack_syndrome = reply.syndrome;
    }
    now
}

/// A READ that is asked for again, and goes back behind what was sent: an epoch begins.
#[hdl_fn]
pub fn restarts(reply: Reply, standing: Standing) -> Bit {
    reply.read && reply.again && !standing.joins && standing.back
}

/// Frames of 4 KiB, less one.
#[hdl_fn]
pub fn turn_of(mtu: Bits<3>) -> Bits<4> {
    match mtu {
        1 => 15.into(),
        2 => 7.into(),
        3 => 3.into(),
        4 => 1.into(),
        _ => 0.into(),
    }
}
