//! Rows of the on-chip tables, as the firmware's COMMIT writes them. A row is at most 512 bits; each engine takes from
//! it the fields it needs, between two packets, so a row is seen whole or not at all.

use crate::{Field, layout, numbers};

numbers! {
    /// Table numbers of the table bus.
    pub mod id: u8 {
        QP_STATE = 0;
        QP_ADDRESS = 1;
        QP_SEND = 2;
        QP_RECV = 3;
        CQ = 4;
        EQ = 5;
        KEY = 6;
        AH = 7;
        GID = 8;
        PORT = 9;
        MULTICAST = 10;
        SRQ = 11;
        MEMBER = 12;
        PACE = 13;
    }
}

numbers! {
    /// Effective QP states, as `ibv_qp_state`.
    pub mod qp_state: u8 {
        RESET = 0;
        INIT = 1;
        RTR = 2;
        RTS = 3;
        SQD = 4;
        SQE = 5;
        ERR = 6;
    }
}

numbers! {
    /// QP types.
    pub mod qp_type: u8 {
        RC = 0;
        UC = 1;
        UD = 2;
        /// Whole Ethernet frames: QP 0 only, whose receive queue takes the frames that are not RoCE.
        RAW = 3;
        /// The ends of an extended reliable connection: CREATE_QP refuses them by name.
        XRC_INI = 4;
        XRC_TGT = 5;
        /// A UD QP, the general service queue pair: QP 1 only, with the Q_Key [`QP1`](crate::wire::qkey::QP1). For CREATE_QP alone, rows have UD.
        GSI = 6;
    }
}

/// Owner of a send or receive queue that no doorbell page may ring.
pub const NOBODY: u64 = 0xfff;

numbers! {
    /// Access flags of MRs and QPs, as `ibv_access_flags`.
    pub mod access: u8 {
        LOCAL_WRITE = 1;
        REMOTE_WRITE = 2;
        REMOTE_READ = 4;
        REMOTE_ATOMIC = 8;
    }
}

layout! {
    /// Effective state of a QP. Writer: control/qp_state. A QP in ERR takes RESET and ERR only, one in SQE these and RTS with
    /// `RESUME`: a move that crosses an error on its way loses.
    pub mod qp_state_row: 4 {
        /// One of `qp_state`.
        STATE = 0, 3;
        /// With RTS: the move is one from SQE.
        RESUME = 3, 1;
        /// Counts up when the QP number is reset: messages of an older generation are dropped.
        GENERATION = 8, 8;
    }
}

layout! {
    /// Addresses of a connected QP, or of an address handle: what egress puts in front of packets.
    pub mod qp_address: 64 {
        /// Destination MAC, first wire byte lowest.
        DMAC = 0, 48;
        /// Index of the source GID.
        GID = 48, 8;
        /// Traffic class or type of service (never CE in its lower two bits).
        TRAFFIC_CLASS = 56, 8;
        /// Destination IP as wire bytes, first lowest; IPv4 takes the first 4.
        DIP_LOW = 64, 64;
        /// Rest of the destination IP.
        DIP_HIGH = 128, 64;
        /// UDP source port.
        SPORT = 192, 16;
        /// Hop limit or time to live.
        HOP_LIMIT = 208, 8;
        /// 1: IPv6.
        IS_IP6 = 216, 1;
        /// VLAN priority (PCP), used when the GID has a VLAN.
        PRIORITY = 217, 3;
        /// Destination QP number.
        DEST_QPN = 224, 24;
        /// P_Key.
        PKEY = 256, 16;
        /// Flow label (IPv6).
        FLOW_LABEL = 272, 20;
        /// Address handles: its protection domain.
        PD = 296, 16;
        /// Address handles: it exists.
        VALID = 312, 1;
    }
}

/// Address handles of a device with so many QPs. Their rows are those of [`qp_address`], behind those of the QPs.
pub const fn address_handles(qps: usize) -> usize {
    qps / 2
}

layout! {
    /// Send side of a QP.
    pub mod qp_send: 64 {
        /// One of `qp_type`.
        TYPE = 0, 2;
        /// With 1 sending begins anew behind all that is posted (next block `INDEX`, next PSN `PSN`, no message in flight) while the
        /// ring stays: SQE to RTS.
        RESUME = 3, 1;
        /// Path MTU code, 1 to 5.
        MTU = 4, 3;
        /// With 1 the row (re)starts the queue: next block `INDEX`, which is 0, next PSN from `PSN`. With 0 only attributes change.
        LOAD = 7, 1;
        /// Protection domain.
        PD = 8, 16;
        /// CQ of the send queue.
        CQN = 24, 24;
        /// First PSN.
        PSN = 48, 24;
        /// Most outstanding READs and atomics, 0 to 16. UD: 1 if its work requests may name privileged Q_Keys (`wire::qkey::PRIVILEGED`).
        MAX_READS = 72, 5;
        /// Reads only: no message is under way, all that was sent is acknowledged.
        DRAINED = 77, 1;
        /// Log2 of the ring's blocks, 0 to 15.
        LOG2_BLOCKS = 80, 4;
        /// Retry count, 0 to 7.
        RETRY_COUNT = 84, 3;
        /// RNR retry count, 7 without limit.
        RNR_RETRY = 88, 3;
        /// Verbs timeout: 4.096 us x 2^t, 0 for never; 29 to 31 act as 28, which is 18.3 minutes.
        TIMEOUT = 96, 5;
        /// Doorbell page that may ring it; `NOBODY` for none.
        OWNER = 104, 12;
        /// What the firmware says of the WQE that it was asked about (`mmio::ASK`), as `verdict`; else 0.
        VERDICT = 116, 4;
        /// Address of the ring in host memory, aligned to 64.
        BASE = 128, 64;
        /// With `RESUME`: the next block, free-running.
        INDEX = 192, 16;
        /// Reads only: posted blocks, free-running.
        PRODUCER = 448, 16;
        /// Reads only: consumed blocks, free-running.
        CONSUMER = 464, 16;
        /// Reads only: blocks on chip, free-running.
        FETCHED = 480, 16;
    }
}

numbers! {
    /// What the firmware says of a WQE, in `qp_send::VERDICT`.
    pub mod verdict: u8 {
        /// Never in a row: it was asked.
        ASKED = 1;
        /// It is done: the QP goes on.
        DONE = 8;
        /// Or, with one of `status::cause` up to 7 added, it may not be: that is its completion's cause.
        REFUSED = 8;
    }
}

layout! {
    /// Receive side of a QP.
    pub mod qp_recv: 64 {
        /// One of `qp_type`.
        TYPE = 0, 2;
        /// With 1 the protocol (re)starts (expected PSN from `PSN`, between messages, no READ resources) while the ring and
        /// what is posted in it stay: INIT to RTR. `LOAD` restarts both.
        LOAD_PSN = 3, 1;
        /// Path MTU code, 1 to 5.
        MTU = 4, 3;
        /// With 1 the row (re)starts the queue: indices 0, expected PSN from `PSN`. With 0 only attributes change.
        LOAD = 7, 1;
        /// Protection domain.
        PD = 8, 16;
        /// CQ of the receive queue.
        CQN = 24, 24;
        /// Expected PSN.
        PSN = 48, 24;
        /// READs and atomics that may be outstanding at this responder, 0 to 16.
        MAX_DEST_READS = 72, 5;
        /// Log2 of the ring's blocks, 0 to [`MAX_RECV_LOG2`](crate::queue::MAX_RECV_LOG2).
        LOG2_BLOCKS = 80, 4;
        /// RNR timer code that this responder asks for.
        MIN_RNR_TIMER = 84, 5;
        /// A receive is one SGE; else it is a block of four.
        ONE_SGE = 89, 1;
        /// Access flags, as `access`.
        ACCESS = 92, 4;
        /// Doorbell page that may ring it; `NOBODY` for none.
        OWNER = 104, 12;
        /// Address of the ring in host memory, aligned to 64.
        BASE = 128, 64;
        /// P_Key that packets must carry (lower 15 bits; bit 15 full member).
        PKEY = 192, 16;
        /// Receives are taken from the queue of number `QUEUE`, a shared one, each a single SGE.
        SHARED = 208, 1;
        /// See `SHARED`.
        QUEUE = 212, 12;
        /// Source IP that packets must come from, as `qp_address::DIP_LOW`. UD: the Q_Key that they must carry.
        SIP_LOW = 256, 64;
        /// Rest of the source IP.
        SIP_HIGH = 320, 64;
        /// Reads only: posted SGEs, free-running.
        PRODUCER = 448, 16;
        /// Reads only: consumed SGEs, free-running.
        CONSUMER = 464, 16;
        /// Reads only: SGEs on chip, free-running.
        FETCHED = 480, 16;
    }
}

layout! {
    /// What a read of a QP_RECV row gives.
    pub mod qp_recv_read: 64 {
        /// Index of the receive that the message under way has taken from a shared queue.
        TAKEN_INDEX = 8, 16;
        /// There is such a message.
        TAKEN = 24, 1;
        /// Expected PSN.
        PSN = 48, 24;
    }
}

layout! {
    /// Limit of a receive queue, and how it stands.
    pub mod srq: 64 {
        /// SRQ_LIMIT is raised when fewer SGEs are posted and not taken, once; 0: never. 0 again when it was. `qp_recv::LOAD` clears it.
        LIMIT = 0, 16;
        /// Reads only: SGEs that are posted and not taken.
        POSTED = 16, 16;
    }
}

layout! {
    /// Rate of a QP: what its packets, the READ responses among them, may take of the wire, in bytes from Ethernet header to FCS. ACKs,
    /// NAKs and CNPs are free; datagrams cost what they would over IPv4 without tag.
    /// `qp_send::LOAD` ends it.
    pub mod pace: 64 {
        /// Bytes that it earns in each [`pace_period`](super::pace_period), in units of 2^-12; 0: no limit, and what it owed is forgotten.
        QUOTA = 0, 28;
        /// Most that it keeps of what it has not used, in KiB; at least what it earns at a time.
        BURST = 32, 8;
    }
}

/// Cycles in which a QP of a device with so many QPs earns `pace::QUOTA` once.
pub const fn pace_period(qps: usize) -> usize {
    if qps > 256 { qps } else { 256 }
}

layout! {
    /// Completion queue.
    pub mod cq: 64 {
        /// The CQ exists.
        VALID = 0, 1;
        /// With 1 the CQ goes on in another ring, at the index that it has reached; what it is armed for stays.
        RESIZE = 1, 1;
        /// Log2 of the entries, 0 to 22.
        LOG2_ENTRIES = 8, 5;
        /// Event queue.
        EQN = 16, 8;
        /// Doorbell page that may ring it.
        OWNER = 24, 12;
        /// Address of the ring in host memory, aligned to 4096.
        BASE = 64, 64;
        /// Reads only: the CQ ran over and takes no more entries.
        DEAD = 128, 1;
        /// Reads only: free-running index of the next entry. A write of the row without `RESIZE` starts at 0.
        PRODUCER = 136, 24;
    }
}

layout! {
    /// Event queue.
    pub mod eq: 64 {
        /// The EQ exists.
        VALID = 0, 1;
        /// Log2 of the entries, 0 to 22.
        LOG2_ENTRIES = 8, 5;
        /// MSI-X vector.
        VECTOR = 16, 8;
        /// Doorbell page that may ring it.
        OWNER = 24, 12;
        /// Moderation: interrupt after this many events, 0 or 1 for at once.
        MODERATION_COUNT = 40, 16;
        /// Address of the ring in host memory, aligned to 4096.
        BASE = 64, 64;
        /// Moderation: interrupt this many cycles after the first event at the latest.
        MODERATION_CYCLES = 128, 24;
        /// Reads only: free-running index of the next entry. A write of the row starts at 0.
        PRODUCER = 160, 24;
    }
}

layout! {
    /// Memory key: a region or a window. Key number = index in the upper 24 bits, key byte in the lower 8.
    pub mod key: 64 {
        /// The key opens something.
        VALID = 0, 1;
        /// Access flags, as `access`.
        ACCESS = 1, 4;
        /// Who may invalidate it, as `invalidate`.
        INVALIDATE = 5, 2;
        /// 1: `IOVA` is the address of the whole region; 0: the MTT has its pages.
        CONTIGUOUS = 7, 1;
        /// Key byte: lower 8 bits of the lkey and rkey.
        KEY_BYTE = 8, 8;
        /// Protection domain.
        PD = 16, 16;
        /// It is a window, which opens for requests to the QP `QPN` alone, and is no key of a local WQE.
        WINDOW = 32, 1;
        /// That QP.
        QPN = 40, 12;
        /// First virtual address.
        VA = 64, 64;
        /// Length in bytes; `VA + LENGTH` does not pass 2^64.
        LENGTH = 128, 64;
        /// Contiguous: address that `VA` stands for.
        IOVA = 192, 64;
    }
}

/// What [`key`] has in place of an address if it is not contiguous: index of the first MTT entry.
pub const MTT_INDEX: Field = Field { name: "MTT_INDEX", lsb: key::IOVA.lsb, bits: 24, doc: "first MTT entry" };
/// And log2 of the page size: 12, 16, 21 or 30.
pub const PAGE_SHIFT: Field = Field { name: "PAGE_SHIFT", lsb: key::IOVA.lsb + 24, bits: 6, doc: "page size" };

numbers! {
    /// Who may invalidate a key, in `key::INVALIDATE`: a fast-registered region, or a window.
    pub mod invalidate: u8 {
        /// A LOCAL_INV of its own side.
        LOCAL = 1;
        /// A SEND with invalidate of a peer.
        REMOTE = 2;
    }
}

/// Bits of a page frame, an entry of the memory translation table: address >> 12, of addresses of 48 bits.
pub const PAGE_FRAME: usize = 36;

/// Entries of the GID table.
pub const GIDS: usize = 16;

layout! {
    /// GID table entry: one of the port's own addresses; or a multicast group that QPs are attached to, whose MAC is a multicast one.
    pub mod gid: 64 {
        /// The entry exists.
        VALID = 0, 1;
        /// 1: IPv6.
        IS_IP6 = 1, 1;
        /// Frames carry (and must carry) the VLAN tag below.
        TAGGED = 2, 1;
        /// VLAN id.
        VLAN = 8, 12;
        /// Source MAC, or a group's, first wire byte lowest.
        MAC = 64, 48;
        /// IP as wire bytes, first lowest; IPv4 takes the first 4.
        IP_LOW = 128, 64;
        /// Rest of the IP.
        IP_HIGH = 192, 64;
    }
}

layout! {
    /// The port (index 0). Not RoCE, and so for the raw queue, is what no GID row matches.
    pub mod port: 64 {
        /// Station address, first wire byte lowest.
        MAC = 0, 48;
        /// Hand frames that are not RoCE to the raw queue: broadcast ones, those to this MAC, to a GID's, or to a multicast row's.
        RAW_ON = 48, 1;
        /// Hand all non-RoCE frames to the raw queue, whatever their destination.
        PROMISCUOUS = 49, 1;
        /// Frames that may go to the raw queue at once.
        RAW_BURST = 56, 8;
        /// Cycles in which one more may; 0: any number.
        RAW_CYCLES = 64, 32;
    }
}

/// Multicast groups that the raw queue hears.
pub const MULTICASTS: usize = 16;

layout! {
    /// A multicast group whose frames go to the raw queue.
    pub mod multicast: 64 {
        /// The entry exists.
        VALID = 0, 1;
        /// Its MAC, first wire byte lowest.
        MAC = 64, 48;
    }
}

/// QPs that may be attached to a multicast group.
pub const MEMBERS: usize = 8;

layout! {
    /// Who is attached to the multicast group of the GID row of the same index: each gets a copy of its packets.
    pub mod member: 64 {
        /// Number of the last one. A group that nobody is attached to has a 0 here and in the first QPN.
        LAST = 0, 3;
        /// The QPs, from here on one every 32 bits, `MEMBERS` of them.
        QPN = 32, 12;
    }
}

/// Bits from one QPN of [`member`] to the next.
pub const MEMBER_STEP: usize = 32;
