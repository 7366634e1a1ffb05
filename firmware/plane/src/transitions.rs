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

/// In the table, but not done by this device: path migration.
pub const UNSUPPORTED: u32 = ALT_PATH | PATH_MIG_STATE;

/// The rule of a transition, if there is one.
#[inline(never)]
pub fn rule(kind: u8, from: u8, to: u8) -> Option<Rule> {
    let rc = kind == qp_type::RC;
    // Of the raw queue pair nothing is needed, of RC and UC, of UD; and what of RC alone.
    let of = |connected, datagram| match kind {
        qp_type::RC | qp_type::UC => connected,
        qp_type::UD => datagram,
        _ => 0,
    };
    let of_rc = |attributes| if rc { attributes } else { 0 };
    let access = of(ACCESS_FLAGS, QKEY);
    let path = of(ALT_PATH | PATH_MIG_STATE, 0);
    let any = of(CUR_STATE, CUR_STATE);
    let pkey = of(PKEY_INDEX, PKEY_INDEX);
    let live = any | access | path | of_rc(MIN_RNR_TIMER) | RATE_LIMIT;
    let found = match (from, to) {
        (_, RESET) => Some((0, 0)),
        (INIT..=ERR, ERR) => Some((0, 0)),
        (RESET, INIT) => Some((pkey | PORT | access, 0)),
        (INIT, INIT) => Some((0, if kind == qp_type::RAW { 0 } else { pkey | PORT | access })),
        (INIT, RTR) => {
            let required = of(AV | PATH_MTU | DEST_QPN | RQ_PSN, 0) | of_rc(MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER);
            Some((required, of(ALT_PATH, 0) | access | pkey))
        }
        (RTR, RTS) => {
            let retries = of_rc(TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC);
            Some((of(SQ_PSN, SQ_PSN) | retries, live))
        }
        (RTS, RTS) | (SQD, RTS) => Some((0, live)),
        (RTS, SQD) => Some((0, of(EN_SQD_ASYNC_NOTIFY, EN_SQD_ASYNC_NOTIFY))),
        (SQD, SQD) => {
            let retries = TIMEOUT | RETRY_CNT | RNR_RETRY | MAX_QP_RD_ATOMIC | MAX_DEST_RD_ATOMIC | MIN_RNR_TIMER;
            Some((0, access | pkey | path | of(AV, 0) | of_rc(PORT | retries)))
        }
        (SQE, RTS) if matches!(kind, qp_type::UC | qp_type::UD) => Some((0, any | access)),
        _ => None,
    };
    found.map(|(required, optional)| Rule { required, optional })
}
