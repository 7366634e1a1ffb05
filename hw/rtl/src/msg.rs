//! The messages that blocks send each other. One file, so that a reader sees the whole of what crosses a room's wall.
//!
//! Conventions: byte i of anything that comes from the wire or from memory is bits `8i+7..8i`; multi-byte wire fields
//! are already turned into numbers; a local QP number is a [`Qp`] (the wire's 24-bit QPN, once its upper half is known
//! to be zero). Every message about a QP carries its generation: the reader drops it when the QP has been reset since.

use hdl::prelude::*;

/// Local QP number, up to 4,096 QPs.
pub type Qp = Bits<12>;

/// The bits that numbers of `qps` QPs have. A block takes a number `& numbers(qps)`: so nothing is kept or compared of the others.
pub fn numbers(qps: usize) -> Qp {
    bits(qps.next_power_of_two() as u64 - 1)
}
/// Generation of a QP number.
pub type Gen = Bits<8>;
/// Packet or message sequence number.
pub type Psn = Bits<24>;
/// Byte address in the receive or transmit buffer; wraps at the buffer's size.
pub type BufAddr = Bits<20>;

/// What ingress knows of a frame that passed all its checks. Source: wire/ingress.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct RxMeta {
    /// Not RoCE: for the raw queue. `buf` and `payload` then span the whole frame.
    pub raw: Bit,
    /// A response to our requester: for the completer, all else is the responder's.
    pub response: Bit,
    /// First payload byte in the receive buffer.
    pub buf: BufAddr,
    /// Payload bytes, without pad and ICRC. Of an atomic request that is the 8 bytes of what it compares with, behind those of what
    /// it swaps in or adds; of an atomic acknowledge the 8 bytes that were in memory.
    pub payload: Bits<14>,
    /// Buffer rows (one beat each) that the frame occupies.
    pub rows: Bits<12>,
    /// BTH opcode.
    pub opcode: Bits<8>,
    /// BTH destination QPN. Behind `transport/copies` that of a `group` is a member's in its lower half, or 0 for none.
    pub qpn: Bits<24>,
    /// BTH PSN.
    pub psn: Psn,
    /// BTH P_Key.
    pub pkey: Bits<16>,
    /// BTH AckReq.
    pub ack_req: Bit,
    /// BTH solicited event.
    pub solicited: Bit,
    /// BTH pad count.
    pub pad: Bits<2>,
    /// RETH or AtomicETH virtual address.
    pub va: Bits<64>,
    /// RETH or AtomicETH R_Key; DETH Q_Key.
    pub rkey: Bits<32>,
    /// RETH DMA length.
    pub dma_len: Bits<32>,
    /// AETH syndrome.
    pub syndrome: Bits<8>,
    /// AETH MSN; DETH source QPN.
    pub msn: Bits<24>,
    /// Immediate data or key to invalidate, as 4 wire bytes.
    pub imm: Bits<32>,
    /// Source IP as wire bytes; IPv4 in the lower 32 bits, rest zero.
    pub sip: Bits<128>,
    /// IPv6.
    pub ip6: Bit,
    /// Index of the GID row that the frame was sent to; it is a multicast group's, and the frame for all who are attached.
    pub gid: Bits<8>,
    pub group: Bit,
    /// VLAN tag control, 0 when untagged.
    pub vlan: Bits<16>,
    /// The IP header carried a CE mark.
    pub ce: Bit,
}

/// A completion to be written. Sources: transport/commit, transport/completer. Zero `valid` means none.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Completion {
    /// There is one.
    pub valid: Bit,
    /// CQ number.
    pub cqn: Bits<12>,
    /// QP number.
    pub qpn: Qp,
    /// Its generation: an overrun of the CQ is the QP's error.
    pub generation: Gen,
    /// `abi::status::wc`.
    pub status: Bits<8>,
    /// `abi::status::cause`.
    pub cause: Bits<8>,
    /// `abi::queue::send_op` or `recv_op`.
    pub opcode: Bits<8>,
    /// First block of a send WQE, first SGE of a receive.
    pub wqe_index: Bits<16>,
    /// Blocks of the WQE.
    pub blocks: Bits<3>,
    /// Bytes.
    pub length: Bits<32>,
    /// Immediate data or invalidated key.
    pub imm: Bits<32>,
    /// Fires a CQ that is armed for solicited completions.
    pub solicited: Bit,
    /// VLAN tag control.
    pub vlan: Bits<16>,
    /// Source QPN (UD).
    pub src_qpn: Bits<24>,
    /// Of a receive that was taken from a shared queue: it is told of in any case, for its queue goes on.
    pub shared: Bit,
}

/// What the responder owes its peer once the packet has landed.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Reply {
    /// An ACK or NAK: `psn`, `msn` and `syndrome` are its content.
    pub ack: Bit,
    /// A READ response: resource `slot`, beginning at PSN `psn` of it.
    pub read: Bit,
    /// An atomic that is executed, whose response follows that (`read` holds too); or the answer to one of ours.
    pub atomic: Bit,
    /// READ: a duplicate request, whose response begins anew. Without `ack` and `read`: of an unreliable QP, which never answers.
    pub again: Bit,
    /// PSN.
    pub psn: Psn,
    /// Message sequence number.
    pub msn: Bits<24>,
    /// It counts a message that this packet completes, if it can land. Of the send side: its QP is of UC or UD.
    pub counted: Bit,
    /// AETH syndrome.
    pub syndrome: Bits<8>,
    /// READ resource of the QP.
    pub slot: Bits<4>,
}

/// One step of a received packet's execution, in the order of arrival. A packet is one or more steps; each may write
/// one stretch of memory; the one with `last` also says what follows once all of it has landed.
/// Sources: transport/responder, transport/completer. Sink: memory/landing.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct RxOp {
    /// QP.
    pub qpn: Qp,
    /// Its generation.
    pub generation: Gen,
    /// From the completer (a response), not the responder (a request).
    pub response: Bit,
    /// Writes `len` bytes, at least one, from the receive buffer at `buf` to `va` under `key`. If `reply.atomic` holds, executes the
    /// atomic there, or writes the 8 bytes in the host's order. With `reply.read` alone it is an atomic write.
    pub write: Bit,
    /// The atomic adds, else it compares and swaps.
    pub adds: Bit,
    /// Key number and key byte.
    pub key: Bits<32>,
    /// Virtual address.
    pub va: Bits<64>,
    /// Bytes to write.
    pub len: Bits<14>,
    /// Bytes from `va` that must lie in the region (at a message's first packet: all of the message).
    pub span: Bits<32>,
    /// Source in the receive buffer.
    pub buf: BufAddr,
    /// Protection domain.
    pub pd: Bits<16>,
    /// What the key must allow, see [`AccessReq::need`]. A step that invalidates it writes nothing, but takes the way of a write.
    pub need: Bits<6>,
    /// Last step of the packet; all below counts only here.
    pub last: Bit,
    /// A request that is accepted if it lands: commit counts its verdict. All other packets have theirs from their engine.
    pub accepted: Bit,
    /// Its turn in dispatch goes on with a further packet's steps: an ACK that completes several messages.
    pub more: Bit,
    /// Buffer rows to free.
    pub rows: Bits<12>,
    /// PSN of the packet.
    pub psn: Psn,
    /// What to answer.
    pub reply: Reply,
    /// What to complete. Responses and SENDs fill it on every packet (without `valid` unless they complete), for a fault
    /// in landing turns it into a completion LOC_PROT. A `cause` is a QP error, with or without a completion.
    pub completion: Completion,
}

/// A packet that has landed, or could not: what its last step says, and the verdict. Source: memory/landing. Sink:
/// transport/commit.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Landed {
    /// A step failed: `cause` (`abi::status::cause`) says why.
    pub fault: Bit,
    /// It came after the first fault of its QP's side, and was dropped; only with the rest of its message, of an unreliable QP.
    pub flushed: Bit,
    pub passing: Bit,
    /// Why it failed, or 0.
    pub cause: Bits<8>,
    /// The last step writes: what follows waits until the write channel has that write.
    pub wrote: Bit,
    /// It is the memory of a local WQE, not that of the peer's key.
    pub own: Bit,
    /// It was a frame, not a wake-up call.
    pub frame: Bit,
    /// The rest as in [`RxOp`].
    pub qpn: Qp,
    /// Its generation.
    pub generation: Gen,
    /// From the completer.
    pub response: Bit,
    /// Counted by commit.
    pub accepted: Bit,
    /// Further steps belong to its turn.
    pub more: Bit,
    /// PSN of the packet.
    pub psn: Psn,
    /// What to answer.
    pub reply: Reply,
    /// What to complete.
    pub completion: Completion,
}

/// A step of an atomic whose key has been checked. Source: memory/landing. Sink: memory/atomics.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Exchange {
    /// Nothing happens in any slot: the key does not allow it, or it is an atomic write, which waits until all slots are free.
    pub void: Bit,
    /// The answer to one of ours: 8 bytes that go to the host.
    pub response: Bit,
    /// Bus address of what a request is about.
    pub iova: Bits<64>,
    /// Where the last 8 bytes of its operands are in the receive buffer, or those of the answer.
    pub buf: BufAddr,
    /// Of the answer, bytes that are written already.
    pub offset: Bits<3>,
    /// QP, and its READ resource, which takes the result.
    pub qpn: Qp,
    pub slot: Bits<4>,
    /// Adds, else compares and swaps.
    pub adds: Bit,
}

/// Work for the response engine, in order. A READ comes when all writes before it are performed. Source: transport/commit. Sink: transport/respond.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct ReplyGo {
    /// QP.
    pub qpn: Qp,
    /// Its generation.
    pub generation: Gen,
    /// What to send.
    pub reply: Reply,
}

/// One stretch of a packet to be sent. `first` opens a frame, and only there the header fields count.
/// Sources: transport/requester, transport/respond. Sink: wire/frames (through the arbiter).
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct TxSeg {
    /// Opens a frame.
    pub first: Bit,
    /// Closes it.
    pub last: Bit,
    /// Header fields.
    pub head: TxHead,
    /// The stretch is inline data: the next entry of the inline channel.
    pub is_inline: Bit,
    /// It is read from memory: it is not inline and not of 0 bytes.
    pub memory: Bit,
    /// Bytes, 0 to 4,096; 0 names no memory and is not checked.
    pub len: Bits<14>,
    /// Virtual address.
    pub va: Bits<64>,
    /// Key.
    pub key: Bits<32>,
    /// Protection domain.
    pub pd: Bits<16>,
    /// Access that the region must allow; 0 for the sender's own memory.
    pub need: Bits<4>,
}

/// Header fields of a frame to be sent.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct TxHead {
    /// QP whose addresses the frame takes.
    pub qpn: Qp,
    /// Its generation.
    pub generation: Gen,
    /// From the requester: dropped before the wire when `epoch` is no longer the QP's.
    pub request: Bit,
    /// Retry epoch of the requester; of a READ response, that of the response engine. An ACK has none.
    pub epoch: Bits<8>,
    /// A raw frame: the payload is the frame.
    pub raw: Bit,
    /// BTH opcode.
    pub opcode: Bits<8>,
    /// BTH PSN.
    pub psn: Psn,
    /// BTH AckReq.
    pub ack_req: Bit,
    /// BTH solicited event.
    pub solicited: Bit,
    /// Payload bytes of the whole frame, without pad.
    pub payload: Bits<14>,
    /// RETH or AtomicETH address; of an atomic acknowledge what was in memory; UD: `abi::queue::ud_target`.
    pub va: Bits<64>,
    /// RETH key; DETH Q_Key.
    pub rkey: Bits<32>,
    /// RETH length.
    pub dma_len: Bits<32>,
    /// AETH syndrome.
    pub syndrome: Bits<8>,
    /// AETH MSN; DETH source QPN.
    pub msn: Bits<24>,
    /// Immediate data as 4 wire bytes.
    pub imm: Bits<32>,
    /// Sent before as well, or of a READ that was asked for again: counted as a retransmission.
    pub again: Bit,
    /// The NAK that tells of a READ response which could not be read: the only ACK that is not held back by that.
    pub of_fault: Bit,
}

/// A stretch of a frame could not be read. Source: wire/frames. Sink: the engine that sent it.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct TxFault {
    /// QP.
    pub qpn: Qp,
    /// Its generation.
    pub generation: Gen,
    /// The frame was the requester's.
    pub request: Bit,
    /// Its retry epoch.
    pub epoch: Bits<8>,
    /// Its PSN.
    pub psn: Psn,
    /// `abi::status::cause`.
    pub cause: Bits<8>,
}

/// A requester frame left for the MAC. Source: wire/egress. Sink: transport/completer (timers, raw queue pair).
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct TxLeft {
    /// QP.
    pub qpn: Qp,
    /// PSN.
    pub psn: Psn,
    /// It asks for an answer (AckReq, or a READ). Else nobody acknowledges it, and it is thereby done: UC, UD, raw frames.
    pub expects: Bit,
    /// It was sent before as well: its answer may be one to that.
    pub again: Bit,
}

/// A key check and translation. `tag` comes back with every chunk. Sink: memory/access.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct AccessReq {
    /// Key.
    pub key: Bits<32>,
    /// Virtual address.
    pub va: Bits<64>,
    /// Bytes to move, 1 to 16,383.
    pub len: Bits<14>,
    /// Bytes that must lie in the region, at least `len`.
    pub span: Bits<32>,
    /// Protection domain, and QP that asks.
    pub pd: Bits<16>,
    pub qpn: Qp,
    /// What the key must allow (`abi::table::access`). With one of the upper two bits (`abi::table::invalidate`) the key is
    /// invalidated, if it allows that, whatever the range; the answer is as of an access to it.
    pub need: Bits<6>,
}

/// A key is invalidated, not used.
#[hdl_fn]
pub fn invalidates(need: Bits<6>) -> Bit {
    need.get_bits::<2>(4).any()
}

/// `AccessReq::need` of the one that only invalidates.
pub const fn to_invalidate(who: u8) -> u64 {
    (who as u64) << 4
}

/// A stretch of bus addresses: one page at most. Source: memory/access. A request yields one chunk with a cause, or
/// chunks that add up to its length.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Chunk {
    /// Bus address.
    pub iova: Bits<64>,
    /// Bytes.
    pub len: Bits<14>,
    /// Bytes of the request before this chunk.
    pub offset: Bits<14>,
    /// Last chunk of its request, as one with a cause is.
    pub last: Bit,
    /// The request was refused, and why (`abi::status::cause`), else 0.
    pub refused: Bit,
    pub cause: Bits<8>,
}

/// A DMA read of 1 to 4,096 bytes. Sink: memory/dma_read; it splits at 512 bytes and 4 KiB.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct DmaRead {
    /// Bus address, any alignment.
    pub iova: Bits<64>,
    /// Bytes.
    pub len: Bits<14>,
    /// Comes back with the data: client's own number of the request.
    pub tag: Bits<16>,
    /// Comes back with the data, advanced by the bytes before: where the client puts them.
    pub dest: BufAddr,
}

/// Bytes of a DMA read, in any order between and within requests, at most one bus beat. They come right-aligned:
/// byte 0 of `data` (a separate signal) belongs at `dest`. Source: memory/dma_read.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct DmaData {
    /// Client's number.
    pub tag: Bits<16>,
    /// Where byte 0 goes.
    pub dest: BufAddr,
    /// Bytes, 1 to the beat's size.
    pub bytes: Bits<7>,
    /// The bus reported an error: the bytes are void, but they count.
    pub error: Bit,
}

/// A DMA write, performed in the order of acceptance. Sink: memory/dma_write.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct DmaWrite {
    /// Bus address, any alignment.
    pub iova: Bits<64>,
    /// Bytes, 0 to 16,383 (0 writes nothing); inline at most 32.
    pub len: Bits<14>,
    /// The bytes are in `data`, not in the receive buffer.
    pub is_inline: Bit,
    /// Source in the receive buffer.
    pub buf: BufAddr,
    /// Inline bytes.
    pub data: Bits<256>,
    /// Receive buffer rows to free once the bytes are read (0 for none; may come with `len` 0).
    pub rows: Bits<12>,
}

/// A QP must leave its state. Sources: all engines. Sink: control/qp_state.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct QpError {
    /// QP.
    pub qpn: Qp,
    /// Its generation.
    pub generation: Gen,
    /// Meant for the QP whatever its generation.
    pub any_generation: Bit,
    /// `abi::status::cause`.
    pub cause: Bits<8>,
    /// No completion tells of it: raise the affiliated event.
    pub event: Bit,
    /// The send queue alone fails: to SQE, not to ERR.
    pub send_only: Bit,
    /// No error: SRQ_LIMIT of the shared receive queue of this number.
    pub limit: Bit,
}

/// An event for an event queue. Sink: queue/event.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Event {
    /// EQ number; asynchronous events go to EQ 0.
    pub eqn: Bits<8>,
    /// `abi::queue::event`.
    pub kind: Bits<8>,
    /// Object.
    pub number: Bits<24>,
    /// Value.
    pub value: Bits<32>,
}

/// A doorbell that passed its page check. Source: queue/doorbell.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Ring {
    /// Object.
    pub number: Bits<12>,
    /// New producer (SQ, RQ) or consumer (CQ, EQ) index.
    pub index: Bits<24>,
    /// Arm (CQ, EQ).
    pub arm: Bit,
    /// Arm for solicited completions only (CQ).
    pub arm_solicited: Bit,
    /// Arm sequence (CQ).
    pub sequence: Bits<2>,
}

/// The next word of a direct WQE. Source: queue/doorbell. Sink: queue/work_queue.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct DirectWord {
    /// Which one; words come from 0 on without a gap, or begin anew at 0.
    pub number: Bits<4>,
    /// This one names the QP, and the page that writes them owns that.
    pub owned: Bit,
    /// The last one: the WQE is complete, its doorbell follows.
    pub complete: Bit,
    /// The word.
    pub data: Bits<64>,
}

/// A queue that has blocks to be read, as of this cycle. Source: queue/work_queue. Sink: the scheduler.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Woken {
    /// Queue.
    pub queue: Qp,
    /// Its next block.
    pub index: Bits<16>,
}

/// A QP that may send. Source: queue/scheduler. Sink: transport/requester.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Pick {
    /// QP.
    pub qpn: Qp,
    /// It has just woken, and its next block is probably this one.
    pub hinted: Bit,
    /// That block's index.
    pub index: Bits<16>,
}

/// State of a QP, read from control/qp_state.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct QpView {
    /// `abi::table::qp_state`.
    pub state: Bits<3>,
    /// Generation.
    pub generation: Gen,
}

/// Record of a message in flight: what does not follow from those before it. Its first PSN and block are where the messages before
/// it end, its packets follow from its length. Writer: transport/requester. Readers: transport/completer, and the requester,
/// when it sends the message again.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Record {
    /// Blocks of its WQE, 1 to 4; 0 stands for 4.
    pub blocks: Bits<2>,
    /// `abi::queue::send_op`.
    pub opcode: Bits<4>,
    /// Completes with a CQE.
    pub signaled: Bit,
    /// Bytes.
    pub length: Bits<32>,
}

/// What has been acknowledged. Writer: transport/completer. Reader: transport/requester (a copy).
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Acked {
    /// Oldest unacknowledged PSN.
    pub psn: Psn,
    /// Oldest record in flight.
    pub record: Bits<7>,
    /// READs and atomics completed, free-running.
    pub reads: Bits<8>,
    /// First PSN of the oldest record in flight: that of the last completed record plus its packets. A requester that was
    /// sent back behind it (a late ACK overtook the go back) goes on from here, for older WQEs may be overwritten.
    pub message: Psn,
    /// First block of its WQE: that of the last completed record plus its blocks.
    pub wqe_index: Bits<16>,
    /// The peer counts its receives: `limit` is the first record whose message it has none for. Never behind `record`.
    pub limited: Bit,
    /// That record.
    pub limit: Bits<7>,
}

/// Send again from a PSN on. Source: transport/completer. Sink: transport/requester.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct GoBack {
    /// QP.
    pub qpn: Qp,
    /// Its generation.
    pub generation: Gen,
    /// PSN to send next.
    pub psn: Psn,
    /// Record that holds it.
    pub record: Bits<7>,
    /// First block of that record's WQE.
    pub wqe_index: Bits<16>,
    /// Bytes of the message before that PSN.
    pub offset: Bits<32>,
    /// READs in flight, that record's included if it is one, are void: the free-running count starts over at this.
    pub reads: Bits<8>,
}

/// A WQE cannot be executed: the completer completes it with an error once all before it are acknowledged, that is when
/// `psn` is the oldest unacknowledged PSN. Without a `cause` it is an operation that concerns this NIC alone, and executed then; it has
/// a record, and `blocks` is 1 if nothing that was sent before it asks for an answer. Source: transport/requester.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct SendFault {
    /// QP.
    pub qpn: Qp,
    /// Its generation.
    pub generation: Gen,
    /// First PSN that will not be sent.
    pub psn: Psn,
    /// `abi::status::cause`.
    pub cause: Bits<8>,
    /// Blocks of the WQE; 0 when a packet of a message in flight failed: its record tells of its WQE.
    pub blocks: Bits<3>,
    /// Its opcode.
    pub opcode: Bits<8>,
}

/// How far a QP has sent. Writer: transport/requester. Reader: transport/completer (a copy).
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Sent {
    /// Next PSN to send: what lies below it may be acknowledged.
    pub psn: Psn,
    /// Next record to be written.
    pub record: Bits<7>,
}

/// How full a work queue is, as of one cycle. Source: queue/work_queue.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct QueueView {
    /// Producer index: units below it are posted (blocks of a send queue, SGEs of a receive queue).
    pub posted: Bits<16>,
    /// Units below it are on chip.
    pub fetched: Bits<16>,
}

/// A queue and an index in it: the new consumer index, or where to fetch again from.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct QueueIndex {
    /// Queue.
    pub queue: Qp,
    /// Free-running index of a unit: a block of a send queue, an SGE of a receive queue.
    pub index: Bits<16>,
}

/// READ resource of a responder: a READ, or an atomic and its result. Writers: transport/responder, memory/atomics the result.
/// Reader: transport/respond.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct ReadResource {
    /// PSN of the first response packet.
    pub psn: Psn,
    /// MSN that the response carries.
    pub msn: Bits<24>,
    /// Address; of an atomic that is done, what was in memory.
    pub va: Bits<64>,
    /// R_Key.
    pub rkey: Bits<32>,
    /// Bytes, none of an atomic.
    pub length: Bits<32>,
    /// It is an atomic; it is done; the host refused it.
    pub atomic: Bit,
    pub done: Bit,
    pub failed: Bit,
}

/// Frames of an older epoch are void: those of this QP's requester, or its READ responses. Sources: transport/requester,
/// transport/respond. Sink: wire/egress.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct EpochMark {
    /// QP.
    pub qpn: Qp,
    /// Epoch that counts from now on.
    pub epoch: Bits<8>,
}

/// An access to BAR0 or BAR2. Source: the PCIe function.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct BarAccess {
    /// Byte offset, aligned to the access's size.
    pub offset: Bits<24>,
    /// Write.
    pub write: Bit,
    /// 8 bytes, not 4.
    pub wide: Bit,
    /// Data, in the lower half when 4 bytes.
    pub data: Bits<64>,
}

/// A row access of the table bus. `write` 0 reads: the engine answers with the row as it stands. Source: control/tables.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct TableReq {
    /// `abi::table::id`.
    pub table: Bits<4>,
    /// Row.
    pub index: Bits<24>,
    /// Write the row.
    pub write: Bit,
    /// The row.
    pub row: Bits<512>,
}
