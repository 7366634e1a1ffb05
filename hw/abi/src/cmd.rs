//! The command ring: a slot is 128 bytes in host memory, the command in its first half, the answer in its second.
//!
//! The driver writes the command, then `CMD_PRODUCER`. The firmware executes commands in order, writes the answer and
//! counts `CMD_CONSUMER` up. A command with any bad field changes nothing; the answer names the field.

use crate::{Field, layout, numbers};

/// Bytes of a slot.
pub const SLOT: usize = 128;
/// Offset of the answer in a slot.
pub const ANSWER: usize = 64;
/// Log2 of the slots of the largest ring.
pub const MAX_RING_LOG2: u32 = 6;

numbers! {
    /// Command opcodes.
    pub mod op: u8 {
        /// Does nothing.
        NOP = 0;
        /// Limits and versions, as `device`.
        QUERY_DEVICE = 1;
        /// Makes a protection domain.
        CREATE_PD = 2;
        /// Ends a protection domain that nothing refers to.
        DESTROY_PD = 3;
        /// Makes a memory region with a key.
        CREATE_MR = 4;
        /// When it is answered, the device touches the region no more.
        DESTROY_MR = 5;
        /// Makes a completion queue.
        CREATE_CQ = 6;
        /// Ends a completion queue that no QP refers to. When it is answered, the device touches the ring no more.
        DESTROY_CQ = 7;
        /// Makes an event queue.
        CREATE_EQ = 8;
        /// Ends an event queue that no completion queue refers to.
        DESTROY_EQ = 9;
        /// Makes a queue pair, in state RESET.
        CREATE_QP = 10;
        /// Moves a QP from state to state, or changes its attributes.
        MODIFY_QP = 11;
        /// The QP's attributes, its state and PSNs as they stand, in the fields of `modify_qp`; the mask tells which have been set.
        QUERY_QP = 12;
        /// When it is answered, the device touches the rings no more.
        DESTROY_QP = 13;
        /// Sets or clears one of the port's addresses; one that a QP uses stays. The port is owner 0's.
        SET_GID = 14;
        /// Sets the station address, and which frames the raw queue gets, how many at most. Owner 0's.
        SET_PORT = 15;
        /// Finds an owner's objects.
        LIST_OWNED = 16;
        /// Destroys all that an owner has, in the order QPs, SRQs, AHs, MRs, CQs, EQs, PDs; `VALUE` is their number. An object that another
        /// owner's refers to stays: the result is then IN_USE.
        RECLAIM = 17;
        /// Sets or clears a multicast group that the raw queue hears. Owner 0's.
        SET_MULTICAST = 18;
        /// Makes an address handle, that sends of UD name.
        CREATE_AH = 19;
        /// When it is answered, no frame of the device goes there any more.
        DESTROY_AH = 20;
        /// A completion queue goes on in another ring: when it is answered, all entries of before are in the old one, which the
        /// device touches no more. Indices go on, so that an index has its place and phase by the size of the ring it is in.
        RESIZE_CQ = 21;
        /// Asks for virtual functions. Owner 0's. There are none: every count but 0 is UNSUPPORTED.
        SET_VFS = 22;
        /// Makes a shared receive queue. Its number is one that no QP has.
        CREATE_SRQ = 23;
        /// Sets the limit of a shared receive queue.
        MODIFY_SRQ = 24;
        /// How a shared receive queue stands.
        QUERY_SRQ = 25;
        /// Ends a shared receive queue that no QP takes receives from. When it is answered, the device touches the ring no more.
        DESTROY_SRQ = 26;
        /// Attaches a UD QP to a multicast group: from then on it gets a copy of each datagram that comes for the group. With its first
        /// member a group takes the last free entry of the GID table, which is the answer's number. NO_ROOM: none is free, half
        /// of the table is groups, or the group has `table::MEMBERS` members. IN_USE: it is attached already.
        ATTACH_MCAST = 27;
        /// Detaches it: no copy of what comes from then on is for it. With its last member the group leaves the GID table. The end of a QP detaches it.
        DETACH_MCAST = 28;
    }
}

numbers! {
    /// Kinds of objects, for LIST_OWNED.
    pub mod kind: u8 {
        QP = 0;
        MR = 1;
        CQ = 2;
        EQ = 3;
        PD = 4;
        AH = 5;
        SRQ = 6;
    }
}

numbers! {
    /// Results of a command.
    pub mod result: u8 {
        OK = 0;
        /// No such command.
        BAD_OPCODE = 1;
        /// A field's value is impossible; the answer's `FIELD` is the field's bit number in the command.
        BAD_FIELD = 2;
        /// No such object; `FIELD` names the reference.
        NO_OBJECT = 3;
        /// The object belongs to another owner.
        NOT_OWNER = 4;
        /// All entries of the table are in use.
        NO_ROOM = 5;
        /// Others still refer to the object, or it is attached already.
        IN_USE = 6;
        /// The QP's state does not allow this transition.
        BAD_TRANSITION = 7;
        /// A required attribute is missing; `FIELD` is its bit in the mask.
        MISSING_ATTRIBUTE = 8;
        /// An attribute is not allowed here; `FIELD` is its bit in the mask.
        FORBIDDEN_ATTRIBUTE = 9;
        /// Ferroce does not do this (path migration, on-demand paging, XRC, SR-IOV). `FIELD` names the field, or the bit of
        /// `modify_qp::MASK`, by its bit number in the command.
        UNSUPPORTED = 10;
        /// The device failed while executing; see the health register.
        DEVICE_ERROR = 11;
    }
}

layout! {
    /// Head of every command.
    pub mod head: 64 {
        /// One of `op`.
        OPCODE = 0, 8;
        /// Raise the COMMAND event on event queue 0, if there is one, once the command is answered.
        EVENT = 8, 1;
        /// Doorbell page, that is owner, on whose behalf.
        OWNER = 16, 12;
        /// Number of the object (destroy, modify, query).
        NUMBER = 32, 24;
    }
}

layout! {
    /// Head of every answer.
    pub mod answer: 64 {
        /// One of `result`.
        RESULT = 0, 8;
        /// Which field is wrong, see `result`.
        FIELD = 16, 16;
        /// Number of the created object.
        NUMBER = 32, 24;
        /// Command-specific value.
        VALUE = 64, 64;
        /// Second command-specific value.
        VALUE2 = 128, 64;
        /// Phase: inverse of bit `CMD_LOG2` of the command's count, so the first lap writes 1.
        PHASE = 504, 1;
    }
}

layout! {
    /// Answer of QUERY_DEVICE.
    pub mod device: 64 {
        /// As `answer`.
        RESULT = 0, 8;
        /// What the firmware manages, as `bar::LIMITS`.
        LIMITS = 64, 32;
        /// What the firmware manages, as `bar::LIMITS2`.
        LIMITS2 = 96, 32;
        /// GID table entries.
        GIDS = 128, 16;
        /// P_Key table entries: one, the default P_Key.
        PKEYS = 144, 16;
        /// Version of the firmware.
        FW_VERSION = 160, 32;
    }
}

layout! {
    /// LIST_OWNED: the answer's number is the owner's first object of this kind from `FROM` on; `VALUE` counts how many
    /// there are from there on, 0 for none. Go on from the number plus 1.
    pub mod list_owned: 64 {
        /// One of `kind`.
        KIND = 32, 8;
        /// First number to look at.
        FROM = 64, 24;
    }
}

numbers! {
    /// What a key is for.
    pub mod key_kind: u8 {
        /// A region, registered at once.
        REGION = 0;
        /// One that REG_MR registers, while it is not valid, and that may be invalidated: fast registration. `PAGES` is the list of all its
        /// pages, of which a registration takes some that stand there then, `LENGTH` their number. Like `BINDS` it needs one of that room.
        FAST = 1;
        /// A memory window of type 2: BIND_MW, while it is not valid, lets it open a part of a region to the peer of one QP. Its range and
        /// access say nothing here. While it is valid its region cannot be destroyed.
        WINDOW = 2;
    }
}

layout! {
    /// CREATE_MR. The answer's number is the key index, `VALUE` the key (lkey and rkey).
    pub mod create_mr: 64 {
        /// Protection domain.
        PD = 32, 16;
        /// Access flags, as `table::access`.
        ACCESS = 48, 4;
        /// Contiguous: `PAGES` is the IOVA of the whole region.
        CONTIGUOUS = 52, 1;
        /// Pages that come and go while the region lives (on-demand paging): UNSUPPORTED.
        ON_DEMAND = 53, 1;
        /// One of [`key_kind`](super::key_kind).
        KIND = 54, 2;
        /// Log2 of the page size: 12, 16, 21 or 30.
        PAGE_SHIFT = 56, 6;
        /// Windows may be bound to it (`IBV_ACCESS_MW_BIND`); there is room for a sixteenth of the keys.
        BINDS = 62, 1;
        /// First virtual address.
        VA = 64, 64;
        /// Bytes. Of a region that is registered later its pages.
        LENGTH = 128, 64;
        /// IOVA of the region, or of a list of 8-byte page addresses in host memory.
        PAGES = 192, 64;
    }
}

layout! {
    /// CREATE_CQ.
    pub mod create_cq: 64 {
        /// Log2 of the entries, 0 to 22.
        LOG2_ENTRIES = 32, 5;
        /// Event queue: the owner's own, or one of owner 0.
        EQN = 40, 8;
        /// Ring in host memory, aligned to 4096.
        BASE = 64, 64;
    }
}

layout! {
    /// RESIZE_CQ.
    pub mod resize_cq: 64 {
        /// Log2 of the entries, 0 to 22.
        LOG2_ENTRIES = 56, 5;
        /// Ring in host memory, aligned to 4096, in which no entry has bits above its phase clear.
        BASE = 64, 64;
    }
}

layout! {
    /// CREATE_EQ.
    pub mod create_eq: 64 {
        /// Log2 of the entries, 0 to 22.
        LOG2_ENTRIES = 32, 5;
        /// MSI-X vector.
        VECTOR = 40, 8;
        /// Ring in host memory, aligned to 4096.
        BASE = 64, 64;
        /// As `table::eq`.
        MODERATION_COUNT = 128, 16;
        /// As `table::eq`, in cycles.
        MODERATION_CYCLES = 160, 24;
    }
}

layout! {
    /// CREATE_QP: the QP starts in RESET.
    pub mod create_qp: 64 {
        /// One of `table::qp_type`; XRC is UNSUPPORTED, GSI owner 0's.
        TYPE = 32, 4;
        /// SGEs that a receive may have, 1 to `MAX_SGE`: with 1 it takes one of the ring's SGEs, else a block of four.
        RQ_SGES = 36, 3;
        /// Log2 of the send ring's blocks, 0 to 15.
        SQ_LOG2 = 40, 4;
        /// Log2 of the receive ring's blocks, 0 to [`MAX_RECV_LOG2`](crate::queue::MAX_RECV_LOG2).
        RQ_LOG2 = 44, 4;
        /// Protection domain.
        PD = 48, 16;
        /// CQ of the send queue.
        SEND_CQN = 64, 24;
        /// CQ of the receive queue.
        RECV_CQN = 96, 24;
        /// Send ring in host memory, aligned to 64.
        SQ_BASE = 128, 64;
        /// Receive ring in host memory, aligned to 64.
        RQ_BASE = 192, 64;
        /// Shared receive queue, of the same protection domain, that it takes receives from if `SHARED` says so.
        SRQN = 256, 24;
        /// It has no receive queue of its own, the ring of which must be possible all the same, with `RQ_SGES` 1. UNSUPPORTED but for
        /// RC and UD.
        SHARED = 280, 1;
    }
}

layout! {
    /// CREATE_SRQ.
    pub mod create_srq: 64 {
        /// Protection domain.
        PD = 32, 16;
        /// Log2 of the ring's blocks of four receives, 0 to [`MAX_RECV_LOG2`](crate::queue::MAX_RECV_LOG2). A ring must have twice as many
        /// places as receives are outstanding, for holes (`queue::HOLE`).
        LOG2 = 48, 4;
        /// SGEs that a receive may have: all but 1 are UNSUPPORTED.
        SGES = 52, 3;
        /// Ring in host memory, aligned to 64.
        BASE = 64, 64;
    }
}

layout! {
    /// MODIFY_SRQ.
    pub mod modify_srq: 64 {
        /// SRQ_LIMIT is raised when fewer places of the ring are posted and not taken, at once if they are: once. 0: not any more.
        LIMIT = 64, 16;
    }
}

layout! {
    /// Answer of QUERY_SRQ.
    pub mod query_srq: 64 {
        /// As `answer`.
        RESULT = 0, 8;
        /// The limit; 0: not armed.
        LIMIT = 64, 16;
        /// Places of the ring that are posted and not taken, holes among them.
        POSTED = 80, 16;
    }
}

layout! {
    /// Answer of QUERY_QP beside the fields of [`modify_qp`], if the QP takes its receives from a shared queue.
    pub mod query_qp: 64 {
        /// As `answer`.
        RESULT = 0, 8;
        /// Index of the receive that the message under way has taken.
        TAKEN_INDEX = 32, 16;
        /// There is such a message, or one that has failed, and then completed its receive.
        TAKEN = 48, 1;
    }
}

numbers! {
    /// Attribute mask bits of MODIFY_QP, as `ibv_qp_attr_mask`.
    pub mod attr: u32 {
        STATE = 1 << 0;
        CUR_STATE = 1 << 1;
        /// RTS to SQD: SQ_DRAINED is asked for.
        EN_SQD_ASYNC_NOTIFY = 1 << 2;
        ACCESS_FLAGS = 1 << 3;
        PKEY_INDEX = 1 << 4;
        PORT = 1 << 5;
        QKEY = 1 << 6;
        AV = 1 << 7;
        PATH_MTU = 1 << 8;
        TIMEOUT = 1 << 9;
        RETRY_CNT = 1 << 10;
        RNR_RETRY = 1 << 11;
        RQ_PSN = 1 << 12;
        MAX_QP_RD_ATOMIC = 1 << 13;
        ALT_PATH = 1 << 14;
        MIN_RNR_TIMER = 1 << 15;
        SQ_PSN = 1 << 16;
        MAX_DEST_RD_ATOMIC = 1 << 17;
        PATH_MIG_STATE = 1 << 18;
        CAP = 1 << 19;
        DEST_QPN = 1 << 20;
        /// The rate, [`QUOTA`](super::QUOTA) and [`BURST`](super::BURST), which counts at once, for what waits too. UNSUPPORTED where
        /// `bar::LIMITS2` says so.
        RATE_LIMIT = 1 << 25;
    }
}

layout! {
    /// MODIFY_QP, and the attributes that QUERY_QP answers at the same place.
    pub mod modify_qp: 64 {
        /// Which of the fields below count, as `attr`.
        MASK = 64, 32;
        /// New state, as `table::qp_state`.
        STATE = 96, 3;
        /// State that the caller believes in.
        CUR_STATE = 100, 3;
        /// Path MTU code, 1 to 5; with 80 bytes of headers it fits the port's MTU.
        PATH_MTU = 104, 3;
        /// Access flags, as `table::access`.
        ACCESS = 108, 4;
        /// Outstanding READs and atomics, 0 to 16.
        MAX_READS = 112, 5;
        /// Outstanding READs and atomics as responder, 0 to 16.
        MAX_DEST_READS = 120, 5;
        /// Peer's QP number.
        DEST_QPN = 128, 24;
        /// RNR timer code.
        MIN_RNR_TIMER = 152, 5;
        /// Expected PSN.
        RQ_PSN = 160, 24;
        /// Verbs timeout code; 29 to 31 act as 28.
        TIMEOUT = 184, 5;
        /// First PSN.
        SQ_PSN = 192, 24;
        /// Retry count.
        RETRY_CNT = 216, 3;
        /// RNR retry count.
        RNR_RETRY = 220, 3;
        /// Index of the source GID.
        GID = 224, 8;
        /// Traffic class; its lower two bits are not 3 (CE).
        TRAFFIC_CLASS = 232, 8;
        /// Hop limit, at least 1.
        HOP_LIMIT = 240, 8;
        /// VLAN priority.
        PRIORITY = 248, 3;
        /// Destination MAC, first wire byte lowest. With `RATE_LIMIT` [`QUOTA`](super::QUOTA) and [`BURST`](super::BURST).
        DMAC = 256, 48;
        /// UDP source port.
        SPORT = 304, 16;
        /// Destination IP as wire bytes, first lowest. UD: the [`QKEY`](super::QKEY).
        DIP_LOW = 320, 64;
        /// Rest of the destination IP.
        DIP_HIGH = 384, 64;
        /// P_Key index: 0 is the only one.
        PKEY_INDEX = 448, 16;
        /// Flow label.
        FLOW_LABEL = 464, 20;
        /// Port, always 1.
        PORT = 488, 8;
        /// SQE to RTS: index of the send queue's next block, free-running; all before it are the driver's to flush.
        SQ_INDEX = 496, 16;
    }
}

/// The Q_Key of packets that a UD QP receives: in [`modify_qp`] where others have their destination IP. QP 1 has [`QP1`](crate::wire::qkey::QP1); a
/// privileged one is owner 0's to set.
pub const QKEY: Field = Field { name: "QKEY", lsb: modify_qp::DIP_LOW.lsb, bits: 32, doc: "Q_Key" };

/// What a QP earns at a time, as `table::pace`, 0 for no limit: in [`modify_qp`] where others have their MAC.
pub const QUOTA: Field = Field { name: "QUOTA", lsb: modify_qp::DMAC.lsb, bits: 28, doc: "quota of a rate" };
/// And its burst, which must hold as much.
pub const BURST: Field = Field { name: "BURST", lsb: modify_qp::DMAC.lsb + 32, bits: 8, doc: "burst of a rate" };

layout! {
    /// CREATE_AH: its addresses are the fields of [`modify_qp`] from `GID` on, at the same places. The destination may be a multicast group, with
    /// the MAC that belongs to its IP. The answer's number is the handle.
    pub mod create_ah: 64 {
        /// Protection domain, which must be that of the QPs that use it.
        PD = 64, 16;
    }
}

layout! {
    /// ATTACH_MCAST and DETACH_MCAST.
    pub mod mcast: 64 {
        /// The QP.
        NUMBER = 32, 24;
        /// 1: IPv6.
        IS_IP6 = 56, 1;
        /// The group is one of a VLAN.
        TAGGED = 57, 1;
        /// VLAN id, 1 to 0xffe: a tag of VLAN 0 tells a priority only.
        VLAN = 64, 12;
        /// The group's IP as wire bytes, first lowest: a multicast address, whose MAC follows from it.
        IP_LOW = 128, 64;
        /// Rest of the IP.
        IP_HIGH = 192, 64;
    }
}

layout! {
    /// SET_GID.
    pub mod set_gid: 64 {
        /// Index.
        INDEX = 32, 8;
        /// 1 sets, 0 clears the entry.
        VALID = 40, 1;
        /// 1: IPv6.
        IS_IP6 = 41, 1;
        /// The GID has a VLAN.
        TAGGED = 42, 1;
        /// VLAN id.
        VLAN = 48, 12;
        /// MAC, first wire byte lowest.
        MAC = 64, 48;
        /// IP as wire bytes, first lowest.
        IP_LOW = 128, 64;
        /// Rest of the IP.
        IP_HIGH = 192, 64;
    }
}

layout! {
    /// SET_PORT.
    pub mod set_port: 64 {
        /// Frames that are not RoCE go to the raw queue: broadcast ones, those to the station's or a GID's MAC, or to a group of
        /// SET_MULTICAST.
        RAW_ON = 32, 1;
        /// All of them.
        PROMISCUOUS = 33, 1;
        /// Frames that may go there at once, at least 1 if the rate has a limit.
        RAW_BURST = 40, 8;
        /// Station address, first wire byte lowest.
        MAC = 64, 48;
        /// Cycles in which one frame may go there, on average; 0 for no limit.
        RAW_CYCLES = 128, 32;
    }
}

layout! {
    /// SET_VFS.
    pub mod set_vfs: 64 {
        /// Virtual functions.
        COUNT = 32, 16;
    }
}

layout! {
    /// SET_MULTICAST.
    pub mod set_multicast: 64 {
        /// Index, below `table::MULTICASTS`.
        INDEX = 32, 8;
        /// 1 sets, 0 clears the entry.
        VALID = 40, 1;
        /// The group's MAC, first wire byte lowest.
        MAC = 64, 48;
    }
}
