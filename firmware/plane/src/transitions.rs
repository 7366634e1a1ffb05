//! Which attributes a queue pair needs, and may have, from state to state (IBTA 11.2.5.2; the same as the table that
//! libibverbs programs meet in the kernel).

use abi::{
    cmd::attr::*,
    table::{qp_state::*, qp_type},
};

/// Attributes of a transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Must be there.
    pub required: u32,
    /// May be there, beside STATE.
    pub optional: u32,
}

/// In the table, but not done by this device: path migration, and the event when a send queue has drained.
pub const UNSUPPORTED: u32 = ALT_PATH | PATH_MIG_STATE | EN_SQD_ASYNC_NOTIFY;

/// The rule of a transition, if there is one, for RC and raw queue pairs. SQE is a state of the other types.
pub fn rule(kind: u8, from: u8, to: u8) -> Option<Rule> {
    let rc = |required, optional| Some(if kind == qp_type::RAW { (0, 0) } else { (required, optional) });
    let live = CUR_STATE | ACCESS_FLAGS | ALT_PATH | PATH_MIG_STATE | MIN_RNR_TIMER;
    let found = match (from, to) {
        (_, RESET) => Some((0, 0)),
        (INIT..=ERR, ERR) => Some((0, 0)),
        (RESET, INIT) if kind == qp_type::RAW => Some((PORT, 0)),
        (RESET, INIT) => rc(PKEY_INDEX | PORT | ACCESS_FLAGS, 0),
        (INIT, INIT) => rc(0, PKEY_INDEX | PORT | ACCESS_FLAGS),
        (INIT, RTR) => rc(
            AV | PATH_MTU | DEST_QPN | RQ_PSN | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER,
            ALT_PATH | ACCESS_FLAGS | PKEY_INDEX,
        ),
        (RTR, RTS) => rc(SQ_PSN | TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC, live),
        (RTS, RTS) | (SQD, RTS) => rc(0, live),
        (RTS, SQD) => rc(0, EN_SQD_ASYNC_NOTIFY),
        (SQD, SQD) => rc(
            0,
            PORT | AV
                | TIMEOUT
                | RETRY_CNT
                | RNR_RETRY
                | MAX_QP_RD_ATOMIC
                | MAX_DEST_RD_ATOMIC
                | ALT_PATH
                | ACCESS_FLAGS
                | PKEY_INDEX
                | MIN_RNR_TIMER
                | PATH_MIG_STATE,
        ),
        _ => None,
    };
    found.map(|(required, optional)| Rule { required, optional })
}
