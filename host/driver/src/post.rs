//! Posting sends: a batch of work requests, one doorbell.

use crate::ah::Destination;
use crate::function::{Error, Result};
use crate::mr::{Binding, Registration, Remote, Sge};
use crate::qp::{Body, Qp, Rts, Transport, put_sge};
use abi::queue::doorbell::DIRECT_BLOCKS;
use abi::queue::{
    ATOMIC_BYTES, ATOMIC_OFFSET, ATOMIC_SGE_OFFSET, MAX_INLINE, MAX_MESSAGE, MAX_SGE, MAX_WQE_BLOCKS,
    SEND_PAYLOAD_OFFSET, WQE_BLOCK, key_wqe, send_op, send_wqe, sge,
};
use abi::table::qp_type;
use bitflags::bitflags;

bitflags! {
    /// Options of a work request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct Flags: u8 {
        /// Completes with a CQE.
        const SIGNALED = 1;
        /// Raises a solicited event at the peer.
        const SOLICITED = 2;
        /// Waits for earlier READs.
        const FENCE = 4;
    }
}

/// Local data of a work request.
#[derive(Clone, Copy, Debug)]
pub enum Data<'a> {
    /// Registered memory.
    Sges(&'a [Sge]),
    /// Copied into the work request, at most 224 bytes.
    Inline(&'a [u8]),
}

/// What a work request does.
#[derive(Clone, Copy, Debug)]
pub enum Operation {
    /// SEND.
    Send,
    /// SEND with immediate data (wire bytes).
    SendImm([u8; 4]),
    /// SEND that invalidates a key of the peer's: of a window of type 2, or of a fast-registered region. Any other one ends the
    /// connection. For reliable connections.
    SendInv(u32),
    /// Invalidates a key of this NIC, as `SendInv` one of the peer's, once all that was posted before is done; what is posted behind it
    /// waits. Without data; on connections.
    LocalInv(u32),
    /// Registers a region of [`FastMr`](crate::FastMr), which must not be registered: its key opens for all that is posted behind it. Without data;
    /// on connections.
    Register(Registration),
    /// Binds a window, which must not be bound, to a part of a region: its key opens for what the peer asks of this QP from then on. Without
    /// data; on connections.
    Bind(Binding),
    /// RDMA WRITE.
    Write(Remote),
    /// RDMA WRITE with immediate data (wire bytes).
    WriteImm(Remote, [u8; 4]),
    /// RDMA READ into the SGEs.
    Read(Remote),
    /// SEND of a datagram.
    SendTo(Destination),
    /// SEND of a datagram with immediate data (wire bytes).
    SendToImm(Destination, [u8; 4]),
    /// Replaces the 8 bytes there by `swap` if they are `compare`. What they were lands in the one SGE, of 8 bytes, a number as
    /// this host writes it; so does the number there. The address is a multiple of 8. Atomic among all QPs of the peer's device.
    AtomicCas {
        /// Where.
        remote: Remote,
        /// What it compares with.
        compare: u64,
        /// What it puts there.
        swap: u64,
    },
    /// Writes 8 bytes of inline data as one: whoever reads there finds all of them or none. The address is a multiple of 8. In order
    /// with atomics there; completes when the peer's device has done it.
    AtomicWrite(Remote),
    /// Adds to the 8 bytes there, modulo 2^64; else like `AtomicCas`.
    AtomicAdd {
        /// Where.
        remote: Remote,
        /// What it adds.
        add: u64,
    },
}

/// A batch of work requests. They reach the device when [`Post::ring`] is called or the batch is dropped.
pub struct Post<'a> {
    body: &'a mut Body,
    posted: u32,
    /// The only work request so far and its blocks, 0 if it cannot go directly.
    direct: ([[u8; WQE_BLOCK]; DIRECT_BLOCKS], usize),
}

impl<T: Transport> Qp<Rts, T> {
    /// Begins a batch.
    pub fn post(&mut self) -> Post<'_> {
        Post { body: &mut self.body, posted: 0, direct: ([[0; WQE_BLOCK]; DIRECT_BLOCKS], 0) }
    }
}

impl Post<'_> {
    /// Adds a work request. Errors change nothing: queue full, too many SGEs, too long, device gone.
    pub fn add(&mut self, wr_id: u64, operation: Operation, data: Data<'_>, flags: Flags) -> Result<()> {
        self.body.device.0.life.known()?;
        let mut wqe = [0; MAX_WQE_BLOCKS * WQE_BLOCK];
        let datagram = matches!(operation, Operation::SendTo(_) | Operation::SendToImm(..));
        let answered = matches!(
            operation,
            Operation::Read(_) | Operation::AtomicCas { .. } | Operation::AtomicAdd { .. } | Operation::AtomicWrite(_)
        );
        let local = matches!(operation, Operation::LocalInv(_) | Operation::Register(_) | Operation::Bind(_));
        let possible = match self.body.kind {
            qp_type::UD => datagram,
            qp_type::RAW => !datagram && !local,
            qp_type::UC => !datagram && !answered && !matches!(operation, Operation::SendInv(_)),
            _ => !datagram,
        };
        if !possible {
            return Err(Error::new(format!("{operation:?} on a queue pair of another transport"))
                .hint("datagrams are for UD; READs, atomics and SENDs that invalidate for reliable connections"));
        }
        if local && !matches!(data, Data::Sges([])) {
            return Err(Error::new(format!("{operation:?} with data")).hint("it takes none: give it no SGEs"));
        }
        let (opcode, imm, remote) = match operation {
            Operation::Send => (send_op::SEND, None, None),
            Operation::SendImm(imm) => (send_op::SEND_IMM, Some(imm), None),
            Operation::SendInv(key) => (send_op::SEND_INV, Some(key.to_be_bytes()), None),
            Operation::LocalInv(_) => (send_op::LOCAL_INV, None, None),
            Operation::Register(r) => (send_op::REG_MR, None, Some(r.remote(0))),
            Operation::Bind(b) => (send_op::BIND_MW, None, Some(b.remote(0))),
            Operation::Write(r) => (send_op::WRITE, None, Some(r)),
            Operation::WriteImm(r, imm) => (send_op::WRITE_IMM, Some(imm), Some(r)),
            Operation::Read(r) => (send_op::READ, None, Some(r)),
            Operation::SendTo(to) => (send_op::SEND, None, Some(to.remote(self.body.qkey))),
            Operation::SendToImm(to, imm) => (send_op::SEND_IMM, Some(imm), Some(to.remote(self.body.qkey))),
            Operation::AtomicWrite(r) => (send_op::ATOMIC_WRITE, None, Some(r)),
            Operation::AtomicCas { remote, .. } => (send_op::COMPARE_SWAP, None, Some(remote)),
            Operation::AtomicAdd { remote, .. } => (send_op::FETCH_ADD, None, Some(remote)),
        };
        send_wqe::OPCODE.set(&mut wqe, opcode.into());
        send_wqe::SIGNALED.set(&mut wqe, flags.contains(Flags::SIGNALED).into());
        send_wqe::SOLICITED.set(&mut wqe, flags.contains(Flags::SOLICITED).into());
        send_wqe::FENCE.set(&mut wqe, flags.contains(Flags::FENCE).into());
        if let Some(imm) = imm {
            send_wqe::IMM.set(&mut wqe, u32::from_le_bytes(imm).into());
        }
        if let Some(r) = remote {
            send_wqe::REMOTE_VA.set(&mut wqe, r.addr);
            send_wqe::RKEY.set(&mut wqe, r.rkey.into());
        }
        let operands = match operation {
            Operation::AtomicCas { compare, swap, .. } => Some((swap, compare)),
            Operation::AtomicAdd { add, .. } => Some((add, 0)),
            _ => None,
        };
        let (length, payload) = match data {
            _ if let Some((first, second)) = operands => {
                let Data::Sges([s @ Sge { len: 8, .. }]) = data else {
                    return Err(Error::new("an atomic without an SGE of 8 bytes")
                        .hint("give it one: that is where what was in memory lands"));
                };
                for (word, at) in [first, second].into_iter().zip((ATOMIC_OFFSET..).step_by(ATOMIC_BYTES)) {
                    wqe[at..at + ATOMIC_BYTES].copy_from_slice(&word.to_be_bytes());
                }
                put_sge(&mut wqe, ATOMIC_SGE_OFFSET, s);
                (ATOMIC_BYTES as u64, ATOMIC_SGE_OFFSET + sge::BYTES - SEND_PAYLOAD_OFFSET)
            }
            _ if matches!(operation, Operation::AtomicWrite(_))
                && !matches!(data, Data::Inline(bytes) if bytes.len() == ATOMIC_BYTES) =>
            {
                return Err(Error::new("an atomic write of other than 8 bytes of inline data")
                    .hint("give it 8 bytes as `Data::Inline`"));
            }
            Data::Inline(bytes) => {
                if bytes.len() > MAX_INLINE || matches!(operation, Operation::Read(_)) {
                    return Err(Error::new(format!("{} bytes of inline data for {operation:?}", bytes.len()))
                        .hint(format!("at most {MAX_INLINE}, and none for a READ")));
                }
                send_wqe::INLINE.set(&mut wqe, 1);
                wqe[SEND_PAYLOAD_OFFSET..SEND_PAYLOAD_OFFSET + bytes.len()].copy_from_slice(bytes);
                (bytes.len() as u64, bytes.len())
            }
            Data::Sges(sges) => {
                if sges.len() > MAX_SGE {
                    return Err(Error::new(format!("{} SGEs", sges.len())).hint(format!("at most {MAX_SGE}")));
                }
                send_wqe::SGES.set(&mut wqe, sges.len() as u64);
                for (s, at) in sges.iter().zip((SEND_PAYLOAD_OFFSET..).step_by(sge::BYTES)) {
                    put_sge(&mut wqe, at, s);
                }
                (sges.iter().map(|s| u64::from(s.len)).sum(), sges.len() * sge::BYTES)
            }
        };
        let length = if let Operation::LocalInv(key) = operation { key.into() } else { length };
        let opens = match operation {
            Operation::Register(r) => Some((r, 0)),
            Operation::Bind(b) => Some((b.part, b.lkey)),
            _ => None,
        };
        if let Some((r, lkey)) = opens {
            key_wqe::ACCESS.set(&mut wqe, r.access.bits().into());
            key_wqe::LKEY.set(&mut wqe, lkey.into());
            key_wqe::SIZE.set(&mut wqe, r.len as u64);
            key_wqe::PAGES.set(&mut wqe, r.pages);
        }
        if length > MAX_MESSAGE && !local {
            return Err(Error::new(format!("a message of {length} bytes")).hint("at most 2^31 bytes"));
        }
        let blocks = if local { 1 } else { (SEND_PAYLOAD_OFFSET + payload).div_ceil(WQE_BLOCK) };
        if self.body.send_room() < blocks as u32 {
            return Err(
                Error::new("the send queue is full").hint("poll the completion queue, and signal some requests")
            );
        }
        send_wqe::BLOCKS.set(&mut wqe, blocks as u64);
        send_wqe::LENGTH.set(&mut wqe, length);
        send_wqe::INDEX.set(&mut wqe, self.body.send.producer.into());
        send_wqe::QPN.set(&mut wqe, self.body.qpn.into());
        let (ring, _) = wqe.as_chunks::<WQE_BLOCK>();
        self.body.push_send(wr_id, &ring[..blocks]);
        let alone = self.posted == 0 && blocks <= DIRECT_BLOCKS;
        self.direct = ([ring[0], ring[1]], if alone { blocks } else { 0 });
        self.posted += 1;
        Ok(())
    }

    /// Adds the blocks of a work request as they are, for tests of what the device makes of them: it checks every field and
    /// completes a bad request with an error. `blocks` advances the producer index, whatever the blocks say themselves.
    /// Hidden, for a program has no use for it: torn requests cannot be told apart in completions, and fail the QP.
    #[doc(hidden)]
    pub fn add_raw(&mut self, wr_id: u64, blocks: &[[u8; WQE_BLOCK]]) -> Result<()> {
        self.body.device.0.life.known()?;
        if (self.body.send_room() as usize) < blocks.len() {
            return Err(Error::new("the send queue is full"));
        }
        self.body.push_send(wr_id, blocks);
        (self.direct.1, self.posted) = (0, self.posted + 1);
        Ok(())
    }

    /// Sends the batch off.
    pub fn ring(self) {}

    /// Sends off a batch of a single request with the request itself, which spares the device a fetch: for one of at most
    /// [`DIRECT_BLOCKS`] blocks, that is with up to 96 bytes of inline data, or of any number of SGEs.
    pub fn ring_direct(self) {
        if !self.body.hears() {
            return;
        }
        let (blocks, count) = &self.direct;
        for (db, word) in self.body.direct.iter().zip(blocks[..*count].as_flattened().as_chunks::<8>().0) {
            db.ring(u64::from_le_bytes(*word));
        }
    }
}

impl Drop for Post<'_> {
    fn drop(&mut self) {
        if self.posted > 0 && self.body.hears() {
            self.body.send.ring();
        }
    }
}
