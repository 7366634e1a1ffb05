//! Header checks of a received frame and its [`RxMeta`], for `wire/ingress`: a pipeline, one frame per cycle.
//!
//! ```text
//! cycle        0            1        2         3
//! valid        headers
//! stage                     l4       match     fields, out
//!
//! in N turns                1 .. N   .. N + 3  N + 4
//! ```
//! Where the destination is looked up in turns (`wire/rows`) a frame stays as long in `l4`. Runts may end in every cycle: they do
//! not get there, but come out in their turn, for what goes along with each frame (`Arrival`) moves on in every cycle.
//!
//! Which frames are RoCE: UDP port 4791 under a MAC, IP and VLAN of one GID row. Of these every check must hold. All
//! others are raw frames; the port row decides whether the raw queue wants them. No handshakes: nothing here can wait.
//!
//! Checks in order, the first that fails gives the verdict: MAC, room, runts, IP options and fragments, IPv4 header checksum,
//! lengths; then, if UDP checksum and ICRC hold (`wire/ingress`), transport version and opcode, multicast QPN, extended headers.

use super::{be, gids::Destination, window::Headers};
use crate::{
    msg::{BufAddr, RxMeta},
    transport::opcode::is_response,
};
use abi::{
    status::counter,
    wire::{self, len},
};
use hdl::prelude::*;

/// Stages at most: those of 8 turns.
const STAGES: usize = 12;

/// Stages in front of that in which the fields are made, where the destination is looked up in `turns` turns. The result comes in
/// the next cycle but one, or three cycles after the last turn.
const fn fields_at(turns: usize) -> usize {
    if turns == 1 { 1 } else { turns + 2 }
}

/// Cycles from `valid` to `out_valid`.
pub const fn latency(turns: usize) -> usize {
    fields_at(turns) + 2
}

/// What the intake knows of a frame at its end.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Arrival {
    /// Bytes.
    pub len: Bits<14>,
    /// Its first byte in the buffer.
    pub buf: BufAddr,
    /// Rows that it takes there.
    pub rows: Bits<12>,
    /// The MAC reported an error, or the frame is over the maximum.
    pub error: Bit,
    /// Not all of it is in the buffer.
    pub no_room: Bit,
    /// Shorter than any that is looked at.
    pub runt: Bit,
}

/// The parser's verdict. Faults are `abi::status::counter`s, 0 for none.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Parsed {
    pub meta: RxMeta,
    /// Fails before the checksums count, if it is `faulty`.
    pub fault: Bits<6>,
    pub faulty: Bit,
    /// Fails if the checksums hold.
    pub late_fault: Bits<6>,
    /// There is a UDP checksum.
    pub summed: Bit,
}

/// IP fields.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct L4 {
    mac: Bits<48>,
    tagged: Bit,
    tci: Bits<16>,
    /// A whole header of that version.
    ip4: Bit,
    ip6: Bit,
    /// The frame ends inside of its IP header.
    cut: Bit,
    ce: Bit,
    /// Length by the IP header, header included.
    ip_len: Bits<17>,
    /// Bytes from the frame's start to behind the UDP header.
    udp_end: Bits<7>,
    next_header: Bits<8>,
    options: Bit,
    first_fragment: Bit,
    later_fragment: Bit,
    to_roce_port: Bit,
    sip: Bits<128>,
    dip: Bits<128>,
    /// Of the words of an IPv4 header, two by two.
    sums: Bits<85>,
    /// From the UDP header on, without IP options.
    bytes: Bits<384>,
}

/// What the headers are, in bits.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Kind {
    tagged: Bit,
    tci: Bits<16>,
    ip4: Bit,
    ip6: Bit,
    ce: Bit,
    sip: Bits<128>,
    /// To a multicast MAC; with the multicast QPN.
    group: Bit,
    to_all: Bit,
    /// Ends inside of its IP or UDP header.
    cut: Bit,
    /// UDP to the port of RoCE.
    to_roce: Bit,
    /// What else makes a frame to one of our addresses suspicious: a later fragment, an extension header.
    other_part: Bit,
    unsupported: Bit,
    sum: Bits<20>,
    lengths: Bit,
    udp_len: Bits<16>,
    op: Op,
    bytes: Bits<384>,
}

/// What follows the BTH of an opcode.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
struct Op {
    known: Bit,
    deth: Bit,
    reth: Bit,
    atomic: Bit,
    aeth: Bit,
    imm: Bit,
    payload: Bit,
    /// It is an atomic, either way: exactly 8 bytes are payload.
    operand: Bit,
    /// Bytes of extended headers, in fours.
    words: Bits<3>,
}

/// The bits of [`Op`] for an opcode. The last 8 bytes of an atomic's headers, either way, count as its payload: they are read from the
/// receive buffer.
fn op_bits(opcode: usize) -> u64 {
    let Some(o) = wire::op_info(opcode as u8) else { return 0 };
    let operand = o.atomic || o.atomic_ack;
    let flags = [true, o.deth, o.reth, o.atomic, o.aeth, o.imm || o.ieth, o.payload, operand];
    let words = (o.ext_len() - if operand { len::ATOMIC_ACK } else { 0 }) as u64 / 4;
    flags.iter().enumerate().map(|(i, f)| (*f as u64) << i).sum::<u64>() | words << 8
}

/// Looks the opcode up.
#[hdl_fn]
fn op_of(opcode: Bits<8>) -> Op {
    let mut found: Bits<11> = 0.into();
    for o in 0..256 {
        if elab!(op_bits(o)) != 0 {
            found |= if opcode == o.to_bits() { elab!(bits::<11>(op_bits(o))) } else { 0.into() };
        }
    }
    Op {
        known: found.get_bit(0),
        deth: found.get_bit(1),
        reth: found.get_bit(2),
        atomic: found.get_bit(3),
        aeth: found.get_bit(4),
        imm: found.get_bit(5),
        payload: found.get_bit(6),
        operand: found.get_bit(7),
        words: found.get_bits::<3>(8),
    }
}

/// Sums of the 16-bit words of an IPv4 header, two by two, in the byte order of the wire's bytes as they lie.
#[hdl_fn]
fn pair_sums(header: Bits<320>) -> Bits<85> {
    let mut sums: Bits<85> = 0.into();
    for i in 0..5 {
        let sum = header.get_bits::<16>(32 * i).cast::<17>() + header.get_bits::<16>(32 * i + 16).cast::<17>();
        sums |= sum.cast::<85>() << (17 * i) as u64;
    }
    sums
}

/// Header checks.
#[derive(Clone, Debug, Default, LogicBlock)]
pub struct Parser {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    /// A frame has ended.
    pub valid: Signal<In, Bit>,
    pub headers: Signal<In, Headers>,
    pub arrived: Signal<In, Arrival>,
    /// For `wire/gids` and `wire/raw_filter`, a cycle later: where it goes to, and its MAC. They say, when the fields are made, whether
    /// that is a GID row, and which, and whether the raw queue wants it and its rate allows one; one is taken.
    pub to: Signal<Out, Destination>,
    pub mac: Signal<Out, Bits<48>>,
    pub ours: Signal<In, Bit>,
    pub gid: Signal<In, Bits<4>>,
    pub wanted_raw: Signal<In, Bit>,
    pub raw_open: Signal<In, Bit>,
    pub raw_taken: Signal<Out, Bit>,
    /// UDP length of the frame that ended 4 cycles ago.
    pub udp_len: Signal<Out, Bits<16>>,
    /// The verdict on the frame that ended `latency` cycles ago. `rows` are the frame's own.
    pub out: Signal<Out, Parsed>,
    pub out_valid: Signal<Out, Bit>,
    stage: [Reg<Bit>; STAGES],
    arrival: [DFF<Arrival>; STAGES],
    l4: DFF<L4>,
    kind: DFF<Kind>,
    fields: DFF<Parsed>,
    length: [DFF<Bits<16>>; 2],
    /// Payload is negative; there is some where the opcode allows none, or but these 8 bytes.
    overhead: DFF<Bit>,
    no_payload: DFF<Bit>,
    operand: DFF<Bit>,
    _turns: Hidden<usize>,
}

impl Parser {
    /// With a lookup of the destination in `turns` turns.
    pub fn new(turns: usize) -> Self {
        assert!(latency(turns) <= STAGES, "{turns} turns");
        Parser { _turns: Hidden(turns), ..Default::default() }
    }
}

impl Logic for Parser {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, stage);
        dff_setup!(self, clock, arrival, l4, kind, fields, length, overhead, no_payload, operand);
        let in_turns = elab!(self._turns.0 > 1);
        let kind_at = elab!(self._turns.0 - 1);
        let made_at = elab!(fields_at(self._turns.0));
        self.stage[0].d.next = self.valid.val();
        if self.valid.val() {
            self.arrival[0].d.next = self.arrived.val();
        }
        for i in 1..STAGES {
            if elab!(i < latency(self._turns.0)) {
                self.stage[i].d.next = self.stage[i - 1].q.val();
                if self.stage[i - 1].q.val() {
                    self.arrival[i].d.next = self.arrival[i - 1].q.val();
                }
            }
        }

        // Take the IP header apart.
        if self.valid.val() && !(in_turns && self.arrived.val().runt) {
            let p = self.headers.val();
            let arrival = self.arrived.val();
            let version = p.ip.get_bits::<4>(4);
            let words = p.ip.get_bits::<4>(0);
            let l2: Bits<7> = if p.tagged { 18.into() } else { 14.into() };
            let header: Bits<7> = if p.ip6 { 40.into() } else { 20.into() };
            let whole = arrival.len >= (l2 + header).cast::<14>();
            let lengths: Bits<4> = if p.ip6 { 10.into() } else { words };
            let fragment = be::<320, 16>(p.ip, 6);
            let later = fragment.get_bits::<13>(0).any();
            let ip4 = p.ip4 && version == 4 && whole;
            self.l4.d.next = L4 {
                mac: p.dmac,
                tagged: p.tagged,
                tci: p.tci,
                ip4,
                ip6: p.ip6 && version == 6 && whole,
                cut: (p.ip4 || p.ip6) && arrival.len >= l2.cast::<14>() && !whole,
                ce: if p.ip6 { p.ip.get_bits::<2>(12) == 3 } else { p.ip.get_bits::<2>(8) == 3 },
                ip_len: if p.ip6 {
                    be::<320, 16>(p.ip, 4).cast::<17>() + 40
                } else {
                    be::<320, 16>(p.ip, 2).cast::<17>()
                },
                udp_end: l2 + if p.ip6 { 48.into() } else { (words.cast::<7>() << 2) + 8 },
                next_header: if p.ip6 { p.ip.get_bits::<8>(48) } else { p.ip.get_bits::<8>(72) },
                options: ip4 && words != 5,
                first_fragment: ip4 && fragment.get_bit(13) && !later,
                later_fragment: ip4 && later,
                to_roce_port: p.ports.get_bit(lengths.index()),
                sip: if p.ip6 { p.ip.get_bits::<128>(64) } else { p.ip.get_bits::<32>(96).cast::<128>() },
                dip: if p.ip6 { p.ip.get_bits::<128>(192) } else { p.ip.get_bits::<32>(128).cast::<128>() },
                sums: pair_sums(p.ip),
                bytes: p.transport,
            };
        }
        let p = self.l4.q.val();
        let arrival = self.arrival[kind_at].q.val();
        self.mac.next = p.mac;
        self.to.next = Destination { ip6: p.ip6, tagged: p.tagged, vlan: p.tci.get_bits::<12>(0), ip: p.dip };

        // Whose is it, do the lengths agree, what is the opcode?
        if self.stage[kind_at].q.val() && !(in_turns && arrival.runt) {
            let l2: Bits<18> = if p.tagged { 18.into() } else { 14.into() };
            let udp_len = be::<384, 16>(p.bytes, 4);
            let header: Bits<18> = if p.ip6 { 40.into() } else { 20.into() };
            let fits = p.ip_len.cast::<18>() + l2 <= arrival.len.cast::<18>();
            let agree = udp_len.cast::<18>() + header == p.ip_len.cast::<18>();
            let mut sum: Bits<20> = 0.into();
            for i in 0..5 {
                sum += p.sums.get_bits::<17>(17 * i).cast::<20>();
            }
            let next = p.next_header;
            let udp = (p.ip4 || p.ip6) && next == wire::IP_PROTO_UDP as u64;
            let has_udp = arrival.len >= p.udp_end.cast::<14>();
            let extension = p.ip6 && (next == 0 || next == 43 || next == 44 || next == 60);
            self.kind.d.next = Kind {
                tagged: p.tagged,
                tci: p.tci,
                ip4: p.ip4,
                ip6: p.ip6,
                ce: p.ce,
                sip: p.sip,
                group: p.mac.get_bit(0),
                to_all: p.bytes.get_bits::<24>(104).all(),
                cut: p.cut || udp && !has_udp,
                to_roce: udp && has_udp && !p.later_fragment && p.to_roce_port,
                other_part: p.later_fragment || extension,
                unsupported: p.options || p.first_fragment,
                sum,
                lengths: fits && agree && udp_len >= 24 && udp_len.get_bits::<2>(0) == 0,
                udp_len,
                op: op_of(p.bytes.get_bits::<8>(64)),
                bytes: p.bytes,
            };
        }

        // The fields, as the opcode has them, and the first fault.
        self.raw_taken.next = false;
        let arrival = self.arrival[made_at].q.val();
        if self.stage[made_at].q.val() {
            let p = self.kind.q.val();
            let op = p.op;
            let ours = self.ours.val();
            let wanted_raw = self.wanted_raw.val();
            let roce = p.to_roce && ours;
            let raw = !roce && wanted_raw;
            // Ones' complement: the low 16 bits and the carries add up to all ones.
            let carries = p.sum.get_bits::<4>(16);
            let sum_holds = p.sum.get_bits::<12>(4).all() && p.sum.get_bits::<4>(0) == !carries;

            let broken = arrival.error || arrival.no_room || arrival.runt;
            let fault_broken: Bits<6> = if arrival.error {
                elab!(counter::RX_MAC_ERROR.to_bits())
            } else if arrival.no_room {
                elab!(counter::RX_NO_ROOM.to_bits())
            } else {
                elab!(counter::RX_MALFORMED.to_bits())
            };
            let spoilt = p.ip4 && !sum_holds;
            let fault_roce: Bits<6> = if p.unsupported {
                elab!(counter::RX_IP_UNSUPPORTED.to_bits())
            } else if spoilt {
                elab!(counter::RX_IP_CHECKSUM.to_bits())
            } else {
                elab!(counter::RX_MALFORMED.to_bits())
            };
            let fault_other: Bits<6> = if p.to_roce {
                elab!(counter::RX_ADDRESS.to_bits())
            } else if ours && p.other_part {
                elab!(counter::RX_IP_UNSUPPORTED.to_bits())
            } else if p.cut {
                elab!(counter::RX_MALFORMED.to_bits())
            } else {
                elab!(counter::RX_RAW_DROPPED.to_bits())
            };
            let refused = !self.raw_open.val();
            let fault: Bits<6> = if broken {
                fault_broken
            } else if roce {
                fault_roce
            } else if wanted_raw {
                elab!(counter::RX_RAW_RATE.to_bits())
            } else {
                fault_other
            };
            let bad_roce = p.unsupported || spoilt || !p.lengths;
            let faulty = broken || if roce { bad_roce } else { !wanted_raw || refused };
            self.raw_taken.next = raw && !refused && !broken;
            let late = roce && (!op.known || p.bytes.get_bits::<4>(72).any());
            // The row that it matches has its MAC, so is a group's if that is a group's. There UD with the multicast QPN belongs, and that nowhere else.
            let misplaced = roce && if p.group { !p.to_all || !op.deth } else { p.to_all };

            let pad = p.bytes.get_bits::<2>(76);
            let extra: Bits<16> = (op.words.cast::<16>() << 2) + pad.cast::<16>() + 24;
            let payload = p.udp_len - extra;
            let udp_at =
                if p.ip6 { bits::<20>(54) } else { bits::<20>(34) } + if p.tagged { bits::<20>(4) } else { 0.into() };
            let start = udp_at + 20 + (op.words.cast::<20>() << 2);
            let imm_in_roce = if op.reth {
                p.bytes.get_bits::<32>(288)
            } else if op.deth {
                p.bytes.get_bits::<32>(224)
            } else {
                p.bytes.get_bits::<32>(160)
            };
            self.overhead.d.next = p.udp_len < extra;
            self.no_payload.d.next = !op.payload;
            self.operand.d.next = op.operand;
            self.length[0].d.next = p.udp_len;
            self.fields.d.next = Parsed {
                meta: RxMeta {
                    raw,
                    response: false,
                    buf: if raw { arrival.buf } else { arrival.buf + start },
                    payload: if raw { arrival.len } else { payload.get_bits::<14>(0) },
                    rows: arrival.rows,
                    opcode: p.bytes.get_bits::<8>(64),
                    qpn: be::<384, 24>(p.bytes, 13),
                    psn: be::<384, 24>(p.bytes, 17),
                    pkey: be::<384, 16>(p.bytes, 10),
                    ack_req: p.bytes.get_bit(135),
                    solicited: p.bytes.get_bit(79),
                    pad,
                    va: if op.reth || op.atomic { be::<384, 64>(p.bytes, 20) } else { 0.into() },
                    rkey: if op.reth || op.atomic {
                        be::<384, 32>(p.bytes, 28)
                    } else if op.deth {
                        be::<384, 32>(p.bytes, 20)
                    } else {
                        0.into()
                    },
                    dma_len: if op.reth { be::<384, 32>(p.bytes, 32) } else { 0.into() },
                    syndrome: if op.aeth { p.bytes.get_bits::<8>(160) } else { 0.into() },
                    msn: if op.aeth {
                        be::<384, 24>(p.bytes, 21)
                    } else if op.deth {
                        be::<384, 24>(p.bytes, 25)
                    } else {
                        0.into()
                    },
                    imm: if op.imm { imm_in_roce } else { 0.into() },
                    sip: p.sip,
                    ip6: p.ip6,
                    gid: self.gid.val().cast::<8>(),
                    group: p.group && roce,
                    vlan: p.tci,
                    ce: p.ce,
                },
                fault,
                faulty,
                late_fault: if late {
                    elab!(counter::RX_OPCODE.to_bits())
                } else if misplaced {
                    elab!(counter::RX_ADDRESS.to_bits())
                } else {
                    0.into()
                },
                summed: p.bytes.get_bits::<16>(48).any(),
            };
        }

        // Does the payload suit the opcode?
        let p = self.fields.q.val();
        let most: Bits<14> = cat!(14; bits::<10>(0), self.operand.q.val(), bits::<3>(0));
        let wrong = self.overhead.q.val() || self.no_payload.q.val() && (p.meta.payload ^ most).any();
        let mut out = p;
        if !p.meta.raw && !p.late_fault.any() && wrong {
            out.late_fault = elab!(counter::RX_MALFORMED.to_bits());
        }
        out.meta.response = !p.meta.raw && is_response(p.meta.opcode);
        self.out.next = out;
        self.length[1].d.next = self.length[0].q.val();
        self.udp_len.next = if in_turns { be::<384, 16>(self.l4.q.val().bytes, 4) } else { self.length[1].q.val() };
        self.out_valid.next = self.stage[made_at + 1].q.val();
    }
}
