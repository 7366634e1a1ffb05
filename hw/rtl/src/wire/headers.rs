//! The bytes in front of a payload, as pure functions: Ethernet, 802.1Q, IPv4 or IPv6, UDP, BTH and extended headers.
//!
//! Byte i of the wire is bits `8i+7..8i`, so a big-endian number goes through `bswap`, and in `cat!` the last wire byte
//! comes first. A header is at most [`MAX`] bytes and starts at bit 0; bits behind it are zero.

use crate::msg::TxHead;
use abi::{
    queue::ud_target,
    table::{gid, qp_address},
    wire::{self, OpInfo, len, op, op_info, transport},
};
use hdl::prelude::*;

/// Bytes of the longest header: Ethernet, VLAN, IPv6, UDP, BTH, RETH, ImmDt.
pub const MAX: usize = len::ETH + len::VLAN + len::IPV6 + len::UDP + len::BTH + len::RETH + len::IMM;
/// Bytes of an AtomicETH that are header: its operands are sent as payload.
const ATOMIC_HEAD: usize = len::ATOMIC - 2 * len::ATOMIC_ACK;
/// Its bits.
pub const MAX_BITS: usize = 8 * MAX;
/// Bits of a stored `qp_address` row.
pub const ADDRESS_BITS: usize = qp_address::FLOW_LABEL.lsb + qp_address::FLOW_LABEL.bits;
/// Bits of a stored `gid` row.
pub const GID_BITS: usize = gid::IP_HIGH.lsb + gid::IP_HIGH.bits;
/// Where the IPv4 header checksum stands in a frame without tag.
const CHECKSUM_AT: usize = len::ETH + 10;
/// The largest extended headers, in bits.
const EXT_BITS: usize = 8 * (len::RETH + len::IMM);
/// UDP, BTH and the extended headers, in bits.
const UPPER_BITS: usize = 8 * (len::UDP + len::BTH) + EXT_BITS;
/// Reserved bytes that a CNP carries behind its BTH (annex A17).
const CNP_RESERVED: usize = 16;

/// Which operations (lower 5 bits of the opcode, reliable connection) have a property, one bit each.
macro_rules! operations {
    ($(#[$doc:meta])* $name:ident, $($field:ident)|+) => {
        $(#[$doc])*
        const $name: u32 = {
            let (mut low, mut mask) = (0u8, 0);
            while low < 32 {
                if let Some(info) = op_info(transport::RC | low) {
                    let OpInfo { $($field),+, .. } = info;
                    if false $(|| $field)+ {
                        mask |= 1 << low;
                    }
                }
                low += 1;
            }
            mask
        };
    };
}
operations!(/** With RETH. */ RETH, reth);
operations!(/** With AtomicETH. */ ATOMIC, atomic);
operations!(/** With AETH. */ AETH, aeth);
operations!(/** With AtomicAckETH. */ ATOMIC_ACK, atomic_ack);
operations!(/** With ImmDt or IETH. */ IMM, imm | ieth);

/// True when the operation of `opcode` is in the set.
#[hdl_fn]
fn is_in(opcode: Bits<8>, set: u32) -> Bit {
    let low = opcode.get_bits::<5>(0);
    let mut hit: Bit = false;
    for k in 0..32 {
        if (set >> k) & 1 == 1 {
            hit = hit || low == k as u64;
        }
    }
    hit
}

/// The opcode is of unreliable datagram: DETH stands behind the BTH.
#[hdl_fn]
pub fn is_datagram(opcode: Bits<8>) -> Bit {
    opcode.get_bits::<3>(5) == (transport::UD >> 5) as u64
}

/// Bytes of the extended headers of `opcode`, without the operands of an atomic.
#[hdl_fn]
pub fn ext_len(opcode: Bits<8>) -> Bits<7> {
    let imm: Bits<7> = if is_in(opcode, IMM) { bits::<7>(len::IMM as u64) } else { bits::<7>(0) };
    let first: Bits<7> = if is_datagram(opcode) {
        bits::<7>(len::DETH as u64)
    } else if is_in(opcode, RETH) {
        bits::<7>(len::RETH as u64)
    } else if is_in(opcode, ATOMIC) {
        bits::<7>(ATOMIC_HEAD as u64)
    } else if is_in(opcode, ATOMIC_ACK) {
        bits::<7>((len::AETH + len::ATOMIC_ACK) as u64)
    } else if is_in(opcode, AETH) {
        bits::<7>(len::AETH as u64)
    } else {
        bits::<7>(0)
    };
    if opcode == wire::CNP { bits::<7>(CNP_RESERVED as u64) } else { first + imm }
}

/// Bytes of all headers of a RoCE frame over IPv4 without tag, with [extended headers](ext_len) of `ext` bytes.
#[hdl_fn]
pub fn shortest(ext: Bits<7>) -> Bits<7> {
    ext + (len::ETH + len::IPV4 + len::UDP + len::BTH) as u64
}

/// Bytes more of IPv6, and of a tag.
#[hdl_fn]
pub fn longer(ip6: Bit, tagged: Bit) -> Bits<7> {
    let more: Bits<7> = if ip6 { bits::<7>((len::IPV6 - len::IPV4) as u64) } else { bits::<7>(0) };
    if tagged { more + len::VLAN as u64 } else { more }
}

/// Bytes that pad a payload to a multiple of 4.
#[hdl_fn]
pub fn pad(payload: Bits<14>) -> Bits<2> {
    bits::<2>(0) - payload.get_bits::<2>(0)
}

/// The UDP length field: header, BTH, [extended headers](ext_len), payload, pad and ICRC.
#[hdl_fn]
pub fn udp_len(head: TxHead, ext: Bits<7>) -> Bits<16> {
    let fixed = ext.cast::<16>() + (len::UDP + len::BTH + len::ICRC) as u64;
    fixed + head.payload.cast::<16>() + pad(head.payload).cast::<16>()
}

/// What extended headers an opcode has.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Exts {
    pub reth: Bit,
    pub deth: Bit,
    pub aeth: Bit,
    pub imm: Bit,
    /// The front of AtomicETH; AtomicAckETH, behind AETH.
    pub atomic: Bit,
    pub value: Bit,
}

/// Those of `opcode`.
#[hdl_fn]
pub fn exts(opcode: Bits<8>) -> Exts {
    let deth = is_datagram(opcode);
    let reth = !deth && is_in(opcode, RETH);
    Exts {
        reth,
        deth,
        aeth: !deth && !reth && is_in(opcode, AETH),
        imm: is_in(opcode, IMM),
        atomic: !deth && is_in(opcode, ATOMIC),
        value: !deth && is_in(opcode, ATOMIC_ACK),
    }
}

/// RETH.
#[hdl_fn]
pub fn reth(head: TxHead) -> Bits<128> {
    cat!(bswap(head.dma_len), bswap(head.rkey), bswap(head.va))
}

/// DETH: its Q_Key is in `rkey` and the source QPN in `msn`, as ingress reports them.
#[hdl_fn]
pub fn deth(head: TxHead) -> Bits<64> {
    cat!(bswap(head.msn), bits::<8>(0), bswap(head.rkey))
}

/// What AtomicETH begins with.
#[hdl_fn]
pub fn atomic(head: TxHead) -> Bits<96> {
    cat!(bswap(head.rkey), bswap(head.va))
}

/// AETH.
#[hdl_fn]
pub fn aeth(head: TxHead) -> Bits<32> {
    cat!(bswap(head.msn), head.syndrome)
}

/// The extended headers.
#[hdl_fn]
fn ext(head: TxHead) -> Bits<EXT_BITS> {
    let has = exts(head.opcode);
    let imm: Bits<32> = if has.imm { head.imm } else { bits::<32>(0) };
    if has.deth {
        cat!(96; imm, deth(head)).cast::<EXT_BITS>()
    } else if has.reth {
        cat!(160; imm, reth(head)).cast::<EXT_BITS>()
    } else if has.atomic {
        atomic(head).cast::<EXT_BITS>()
    } else if has.value {
        cat!(96; bswap(head.va), aeth(head)).cast::<EXT_BITS>()
    } else if has.aeth {
        aeth(head).cast::<EXT_BITS>()
    } else {
        imm.cast::<EXT_BITS>()
    }
}

/// UDP header, its checksum 0.
#[hdl_fn]
pub fn udp(address: Bits<ADDRESS_BITS>, udp_len: Bits<16>) -> Bits<64> {
    let sport = address.get_bits::<16>(elab!(qp_address::SPORT.lsb));
    cat!(bits::<16>(0), bswap(udp_len), bits::<16>(wire::ROCE_PORT.swap_bytes() as u64), bswap(sport))
}

/// BTH. MigReq is 0, as stock Soft-RoCE sends it.
#[hdl_fn]
pub fn bth(head: TxHead, address: Bits<ADDRESS_BITS>) -> Bits<96> {
    let pkey = address.get_bits::<16>(elab!(qp_address::PKEY.lsb));
    let qpn = if is_datagram(head.opcode) {
        head.va.get_bits::<24>(elab!(ud_target::QPN.lsb))
    } else {
        address.get_bits::<24>(elab!(qp_address::DEST_QPN.lsb))
    };
    let flags: Bits<8> = cat!(head.solicited, false, pad(head.payload), bits::<4>(0));
    let becn: Bits<8> = if head.opcode == wire::CNP { bits::<8>(0x40) } else { bits::<8>(0) };
    cat!(bswap(head.psn), head.ack_req, bits::<7>(0), bswap(qpn), becn, bswap(pkey), flags, head.opcode)
}

/// First half of the IPv4 header checksum: everything but the source address, as a sum of 16-bit words.
#[hdl_fn]
pub fn checksum_start(address: Bits<ADDRESS_BITS>, udp_len: Bits<16>) -> Bits<20> {
    let tos = address.get_bits::<8>(elab!(qp_address::TRAFFIC_CLASS.lsb)).cast::<20>();
    let ttl = address.get_bits::<8>(elab!(qp_address::HOP_LIMIT.lsb)).cast::<20>();
    let dip = address.get_bits::<32>(elab!(qp_address::DIP_LOW.lsb));
    // Version, length and type of service; DF; total length beyond UDP's; protocol. The identification is 0.
    let fixed = tos + (0x4500 + 0x4000 + len::IPV4 as u64 + wire::IP_PROTO_UDP as u64);
    (fixed + udp_len.cast::<20>()) + (ttl << 8) + words(dip)
}

/// The two big-endian words of 4 wire bytes, added.
#[hdl_fn]
fn words(bytes: Bits<32>) -> Bits<20> {
    bswap(bytes.get_bits::<16>(0)).cast::<20>() + bswap(bytes.get_bits::<16>(16)).cast::<20>()
}

/// Adds the source address to a [`checksum_start`].
#[hdl_fn]
pub fn checksum_add(sum: Bits<20>, gid: Bits<GID_BITS>) -> Bits<20> {
    sum + words(gid.get_bits::<32>(elab!(gid::IP_LOW.lsb)))
}

/// Folds the sum to the checksum field.
#[hdl_fn]
pub fn checksum_end(sum: Bits<20>) -> Bits<16> {
    let once = sum.get_bits::<16>(0).cast::<17>() + sum.get_bits::<4>(16).cast::<17>();
    !(once.get_bits::<16>(0) + once.get_bits::<1>(16).cast::<16>())
}

/// The IPv4 header checksum of a [`checksum_add`]ed sum where it stands in the frame.
#[hdl_fn]
pub fn checksum_in_place(sum: Bits<20>, tagged: Bit) -> Bits<MAX_BITS> {
    let field = bswap(checksum_end(sum)).cast::<MAX_BITS>();
    if tagged { field << elab!(8 * (CHECKSUM_AT + len::VLAN) as u64) } else { field << elab!(8 * CHECKSUM_AT as u64) }
}

/// IPv4 header with that checksum.
#[hdl_fn]
pub fn ipv4(address: Bits<ADDRESS_BITS>, gid: Bits<GID_BITS>, udp_len: Bits<16>, checksum: Bits<16>) -> Bits<160> {
    let class = address.get_bits::<8>(elab!(qp_address::TRAFFIC_CLASS.lsb));
    let hops = address.get_bits::<8>(elab!(qp_address::HOP_LIMIT.lsb));
    cat!(
        address.get_bits::<32>(elab!(qp_address::DIP_LOW.lsb)),
        gid.get_bits::<32>(elab!(gid::IP_LOW.lsb)),
        bswap(checksum),
        bits::<8>(wire::IP_PROTO_UDP as u64),
        hops,
        bits::<16>(0x0040), // do not fragment
        bits::<16>(0),      // identification
        bswap(udp_len + len::IPV4 as u64),
        class,
        bits::<8>(0x45)
    )
}

/// IPv6 header.
#[hdl_fn]
pub fn ipv6(address: Bits<ADDRESS_BITS>, gid: Bits<GID_BITS>, udp_len: Bits<16>) -> Bits<320> {
    let class = address.get_bits::<8>(elab!(qp_address::TRAFFIC_CLASS.lsb));
    let hops = address.get_bits::<8>(elab!(qp_address::HOP_LIMIT.lsb));
    let flow = address.get_bits::<20>(elab!(qp_address::FLOW_LABEL.lsb));
    cat!(
        address.get_bits::<128>(elab!(qp_address::DIP_LOW.lsb)),
        gid.get_bits::<128>(elab!(gid::IP_LOW.lsb)),
        hops,
        bits::<8>(wire::IP_PROTO_UDP as u64),
        bswap(udp_len),
        bswap(cat!(32; bits::<4>(6), class, flow))
    )
}

/// EtherType of the IP header.
#[hdl_fn]
pub fn ethertype(ip6: Bit) -> Bits<16> {
    if ip6 {
        bits::<16>(wire::ETHERTYPE_IPV6.swap_bytes() as u64)
    } else {
        bits::<16>(wire::ETHERTYPE_IPV4.swap_bytes() as u64)
    }
}

/// Both MACs.
#[hdl_fn]
pub fn macs(address: Bits<ADDRESS_BITS>, gid: Bits<GID_BITS>) -> Bits<96> {
    cat!(gid.get_bits::<48>(elab!(gid::MAC.lsb)), address.get_bits::<48>(elab!(qp_address::DMAC.lsb)))
}

/// VLAN tag.
#[hdl_fn]
pub fn tag(address: Bits<ADDRESS_BITS>, gid: Bits<GID_BITS>) -> Bits<32> {
    let control: Bits<16> =
        cat!(address.get_bits::<3>(elab!(qp_address::PRIORITY.lsb)), false, gid.get_bits::<12>(elab!(gid::VLAN.lsb)));
    cat!(bswap(control), bits::<16>(wire::ETHERTYPE_VLAN.swap_bytes() as u64))
}

/// All header bytes of a RoCE frame, the IPv4 header checksum 0: see [`checksum_in_place`].
#[hdl_fn]
pub fn header(
    head: TxHead,
    address: Bits<ADDRESS_BITS>,
    gid: Bits<GID_BITS>,
    ip6: Bit,
    tagged: Bit,
    udp_len: Bits<16>,
) -> Bits<MAX_BITS> {
    let upper: Bits<UPPER_BITS> = cat!(ext(head), bth(head, address), udp(address, udp_len));
    let v6 = ipv6(address, gid, udp_len);
    let v4 = ipv4(address, gid, udp_len, bits::<16>(0));
    let packet: Bits<640> = if ip6 { cat!(upper, v6) } else { cat!(480; upper, v4).cast::<640>() };
    let (kind, macs) = (ethertype(ip6), macs(address, gid));
    if tagged { cat!(packet, kind, tag(address, gid), macs) } else { cat!(752; packet, kind, macs).cast::<MAX_BITS>() }
}

/// A request that nobody acknowledges: it is done when it has left.
#[hdl_fn]
pub fn is_alone(head: TxHead) -> Bit {
    head.raw || head.request && head.opcode.get_bits::<2>(5).any()
}

/// The answer to a READ request or an acknowledge is expected by its sender.
#[hdl_fn]
pub fn expects_answer(head: TxHead) -> Bit {
    head.request && !head.raw && (head.ack_req || head.opcode == op::READ_REQUEST)
}
