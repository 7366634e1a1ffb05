//! Completion status, causes, verdicts and counters.

use crate::numbers;

numbers! {
    /// Work completion status, as `ibv_wc_status`.
    pub mod wc: u8 {
        SUCCESS = 0;
        LOC_LEN = 1;
        LOC_QP_OP = 2;
        LOC_PROT = 4;
        WR_FLUSH = 5;
        MW_BIND = 6;
        BAD_RESP = 7;
        LOC_ACCESS = 8;
        REM_INV_REQ = 9;
        REM_ACCESS = 10;
        REM_OP = 11;
        RETRY_EXC = 12;
        RNR_RETRY_EXC = 13;
    }
}

macro_rules! names {
    ($(#[doc = $mdoc:literal])* $vis:vis mod $m:ident : $t:ty { $( $(#[doc = $doc:literal])* $name:ident; )* }) => {
        $(#[doc = $mdoc])*
        $vis mod $m {
            #[allow(non_camel_case_types, clippy::upper_case_acronyms, clippy::enum_variant_names, dead_code)]
            enum N { $($name),* }
            $( $(#[doc = $doc])* pub const $name: $t = N::$name as $t; )*
            /// Name and meaning, by number.
            pub const NAMES: &[(&str, &str)] = &[$((stringify!($name), concat!($($doc),*))),*];
        }
    };
}

names! {
    /// Why a QP or a key check failed: the CQE's vendor syndrome, an event's data.
    pub mod cause: u8 {
        /// No cause.
        NONE;
        /// The key's index has no entry, or its key byte differs.
        KEY_INVALID;
        /// The key belongs to another protection domain.
        KEY_PD;
        /// The region does not allow this access.
        KEY_ACCESS;
        /// The range leaves the region or passes 2^64.
        KEY_BOUNDS;
        /// The DMA read or write failed on the bus.
        DMA_ERROR;
        /// The WQE's opcode is unknown or not allowed on this QP.
        WQE_OPCODE;
        /// The WQE's length is over 2^31, or is not the sum of its SGEs.
        WQE_LENGTH;
        /// The WQE's number of blocks or SGEs is impossible.
        WQE_FORMAT;
        /// A refetched WQE is not the one that was sent.
        WQE_CHANGED;
        /// The doorbell's producer is further ahead than the queue is deep.
        DOORBELL_RANGE;
        /// The peer answered NAK invalid request.
        NAK_INVALID_REQUEST;
        /// The peer answered NAK remote access.
        NAK_REMOTE_ACCESS;
        /// The peer answered NAK remote operation.
        NAK_REMOTE_OPERATION;
        /// Retries were used up.
        RETRY_EXCEEDED;
        /// RNR retries were used up.
        RNR_RETRY_EXCEEDED;
        /// The peer's response breaks the protocol.
        BAD_RESPONSE;
        /// A SEND was longer than the receive.
        RECEIVE_TOO_SHORT;
        /// The request breaks the protocol: opcode, sequence or length.
        INVALID_REQUEST;
        /// The QP does not allow the operation.
        QP_ACCESS;
        /// More READs or atomics than the responder offered.
        TOO_MANY_READS;
        /// The completion queue ran over.
        CQ_OVERRUN;
        /// Flushed: the QP is in ERR.
        FLUSHED;
        /// The doorbell's page does not own the object, or there is no such object.
        DOORBELL_OWNER;
        /// Context on the chip is damaged: parity.
        PARITY;
        /// The WQE's address handle does not exist, or belongs to another protection domain.
        WQE_HANDLE;
        /// The WQE's Q_Key is a privileged one, which its QP may not name.
        WQE_QKEY;
    }
}

names! {
    /// Counters of the device, in the counter window. The verdict of every received frame is one of the first.
    pub mod counter: usize {
        /// Frames accepted as RoCE and executed; of a multicast one each copy has a verdict.
        RX_ACCEPTED;
        /// Frames to the raw queue.
        RX_RAW;
        /// Dropped: the MAC reported an error, or the frame is over the maximum.
        RX_MAC_ERROR;
        /// Dropped: no room in the receive buffer.
        RX_NO_ROOM;
        /// Dropped: lengths of IP, UDP and frame disagree, or a header is truncated.
        RX_MALFORMED;
        /// Dropped: IPv4 header checksum, or a UDP checksum that is not zero and wrong.
        RX_IP_CHECKSUM;
        /// Dropped: IP options or fragments.
        RX_IP_UNSUPPORTED;
        /// Dropped: ICRC.
        RX_ICRC;
        /// Dropped: transport version, or opcode that is reserved or not spoken here.
        RX_OPCODE;
        /// Dropped: destination IP, MAC or VLAN is none of ours; or a multicast group without UD and the multicast QPN, or that QPN without a group.
        RX_ADDRESS;
        /// Dropped: raw frame while the raw queue is off, filtered, or without a receive that holds it.
        RX_RAW_DROPPED;
        /// Dropped: raw frame over the rate of the raw queue.
        RX_RAW_RATE;
        /// Dropped: no such QP, or it is not in a state that receives.
        RX_QP_STATE;
        /// Dropped: opcode's transport is not the QP's.
        RX_QP_TYPE;
        /// Dropped: source address is not the QP's peer; UD: another Q_Key.
        RX_QP_PEER;
        /// Dropped: P_Key.
        RX_PKEY;
        /// Duplicate request: acknowledged again or re-executed.
        RX_DUPLICATE;
        /// Out of sequence: NAK sent or already sent.
        RX_OUT_OF_SEQUENCE;
        /// Answered RNR NAK.
        RX_RNR;
        /// Answered NAK invalid request.
        RX_INVALID_REQUEST;
        /// Answered NAK remote access.
        RX_REMOTE_ACCESS;
        /// Answered NAK remote operation.
        RX_REMOTE_OPERATION;
        /// Response or ACK that acknowledges nothing new, or nothing that was sent.
        RX_STALE_RESPONSE;
        /// Not executed, and not answered, by a QP of UC or UD: its length or place in a message, what the QP or a key allows, no receive, or one that is too short.
        RX_UNRELIABLE;
        /// Congestion notification.
        RX_CNP;
        /// CE mark.
        RX_CE;
        /// Message of an older generation of its QP.
        STALE_GENERATION;
        /// Frames sent.
        TX_FRAMES;
        /// Raw frames among them.
        TX_RAW;
        /// Data packets sent again.
        TX_RETRANSMITTED;
        /// ACKs sent.
        TX_ACK;
        /// NAKs sent.
        TX_NAK;
        /// Packets dropped before the wire: retry epoch, generation or local error.
        TX_ABORTED;
        /// Frames to an address of our own: turned round in front of the MAC.
        TX_LOOPBACK;
        /// Frames lost because the link is down.
        TX_LINK_DOWN;
        /// Frames lost because the MAC took nothing (its link is paused) while a command waited; the transport sends them again.
        TX_PAUSED;
        /// Requester went back after a NAK, or a gap in the responses.
        RETRY_NAK;
        /// Requester went back after its fast timer.
        RETRY_FAST_TIMER;
        /// Requester went back after the verbs timeout.
        RETRY_TIMEOUT;
        /// RNR NAK received.
        RNR_RECEIVED;
        /// Doorbell of a foreign page or of an object that does not exist.
        DOORBELL_REFUSED;
        /// Doorbell whose index is out of range.
        DOORBELL_RANGE;
        /// Completion queue overruns.
        CQ_OVERRUN;
        /// Key checks that failed.
        KEY_FAULT;
        /// AXI errors and completion timeouts.
        DMA_ERROR;
        /// Rows of context that were found damaged, each time that they were met.
        PARITY_ERROR;
        /// Bytes received in accepted RoCE payload.
        RX_BYTES;
        /// Bytes sent in RoCE payload.
        TX_BYTES;
    }
}
