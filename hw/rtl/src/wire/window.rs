//! Sorts the headers of a frame into registers as its beats come, without VLAN tag, for `wire/parser`.
//!
//! ```text
//! word (4 bytes)   0  1  2  | 3 ..        13 |            without tag
//!                  MACs     | type, IP header|
//! ports            the destination port behind each length of an IP header, as far as it counts: is it RoCE's?
//! transport        from word 8 (IPv4) or 13 (IPv6) on: UDP header and what follows, beginning at its byte 2
//!
//! cycle    0       1
//! beat     last    next frame's
//! out              the frame's
//! ```
//! A tag is a word that is left out: the words behind it move down by one, and those of IPv6's transport by five more. So a
//! beat is rotated once for all that takes words from it. No handshakes, so nothing here can wait.

use super::be;
use abi::wire;
use hdl::prelude::*;

/// Words up to the end of an IPv6 header.
const WORDS: usize = 14;
/// The first word whose first half may be a UDP destination port, behind an IP header of no words; there are as many as an IPv4
/// header has lengths.
const PORTS_AT: usize = 4;
const PORTS: usize = 16;
/// Words of the transport headers: 2 bytes before them, UDP, BTH, and 28 bytes of extended headers.
const TRANSPORT: usize = 13;
/// Words that an IPv6 header is longer than an IPv4 header.
const LONGER: usize = 5;

/// A frame behind its VLAN tag, if any. What is past its end is noise.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Headers {
    pub dmac: Bits<48>,
    /// There is a VLAN tag, and what it says.
    pub tagged: Bit,
    pub tci: Bits<16>,
    /// By its EtherType.
    pub ip4: Bit,
    pub ip6: Bit,
    /// From the IP header on.
    pub ip: Bits<320>,
    /// Bit n: behind an IP header of n words there is RoCE's destination port.
    pub ports: Bits<PORTS>,
    /// From the UDP header on, if there are no IPv4 options.
    pub transport: Bits<384>,
}

/// See the [module](self).
#[derive(Clone, Debug, Default, LogicBlock)]
pub struct Window<const W: usize> {
    pub clock: Signal<In, Clock>,
    pub rst: Signal<In, Bit>,
    pub valid: Signal<In, Bit>,
    pub data: Signal<In, Bits<W>>,
    pub last: Signal<In, Bit>,
    /// Number of the beat in its frame, 15 for all from there on.
    pub number: Signal<In, Bits<4>>,
    /// What the frame is, as far as it has come with this beat.
    pub tagged: Signal<Out, Bit>,
    pub ip6: Signal<Out, Bit>,
    /// Headers of the frame whose last beat came in the cycle before.
    pub out: Signal<Out, Headers>,

    /// As far as the frame under way has come.
    is_tagged: Reg<Bit>,
    is_ip4: Reg<Bit>,
    is_ip6: Reg<Bit>,
    words: DFF<Bits<448>>,
    ports: DFF<Bits<PORTS>>,
    transport: DFF<Bits<416>>,
    tci: DFF<Bits<16>>,
    // Of the frame that has ended.
    was_tagged: DFF<Bit>,
    was_ip4: DFF<Bit>,
    was_ip6: DFF<Bit>,
}

/// `x` with its words moved down by `n` words, round about.
#[hdl_fn]
fn rotate_words<const W: usize>(x: Bits<W>, n: usize) -> Bits<W> {
    let by = 32 * (n % (W / 32)) as u64;
    if by == 0 { x } else { (x >> by) | (x << (W as u64 - by)) }
}

impl<const W: usize> Logic for Window<W> {
    #[kernel]
    fn update(&mut self) {
        regs!(self, clock, rst, is_tagged, is_ip4, is_ip6);
        dff_setup!(self, clock, words, ports, transport, tci, was_tagged, was_ip4, was_ip6);
        let data = self.data.val();
        let number = self.number.val();

        // Bytes 12 and 13, and 16 and 17 behind a tag.
        let first = be::<W, 16>(data, elab!(12 % (W / 8)));
        let second = be::<W, 16>(data, elab!(16 % (W / 8)));
        let at_first = number == elab!((12 * 8 / W).to_bits::<4>());
        let at_second = number == elab!((16 * 8 / W).to_bits::<4>());
        let tagged = if at_first { first == wire::ETHERTYPE_VLAN as u64 } else { self.is_tagged.q.val() };
        let mut ip4 = self.is_ip4.q.val();
        let mut ip6 = self.is_ip6.q.val();
        if at_first {
            ip4 = first == wire::ETHERTYPE_IPV4 as u64;
            ip6 = first == wire::ETHERTYPE_IPV6 as u64;
        }
        if at_second && tagged {
            ip4 = second == wire::ETHERTYPE_IPV4 as u64;
            ip6 = second == wire::ETHERTYPE_IPV6 as u64;
        }
        self.tagged.next = tagged;
        self.ip6.next = ip6;

        if self.valid.val() {
            let going = !self.last.val();
            self.is_tagged.d.next = tagged && going;
            self.is_ip4.d.next = ip4 && going;
            self.is_ip6.d.next = ip6 && going;
            if self.last.val() {
                self.was_tagged.d.next = tagged;
                self.was_ip4.d.next = ip4;
                self.was_ip6.d.next = ip6;
            }

            let moved = if tagged { rotate_words(data, 1) } else { data };
            for k in 0..WORDS {
                let plain = number == elab!((k * 32 / W).to_bits::<4>());
                if k < 3 {
                    if plain {
                        self.words.d.next.set_bits::<32>(32 * k, data.get_bits::<32>(32 * k % W));
                    }
                } else {
                    let behind = number == elab!(((k + 1) * 32 / W).to_bits::<4>());
                    if if tagged { behind } else { plain } {
                        self.words.d.next.set_bits::<32>(32 * k, moved.get_bits::<32>(32 * k % W));
                    }
                }
            }
            let mut is_port: Bits<16> = 0.into();
            for j in 0..W / 32 {
                is_port = is_port.replace_bit(j, be::<W, 16>(data, 4 * j) == wire::ROCE_PORT as u64);
            }
            let mut ports = self.ports.q.val();
            for n in 0..PORTS {
                let at = elab!(n + PORTS_AT);
                let plain = number == elab!(((n + PORTS_AT) * 32 / W).to_bits::<4>());
                let behind = number == elab!(((n + PORTS_AT + 1) * 32 / W).to_bits::<4>());
                if if tagged { behind } else { plain } {
                    let here = is_port.get_bit(at % (W / 32));
                    let next = is_port.get_bit((at + 1) % (W / 32));
                    ports = ports.replace_bit(n, if tagged { next } else { here });
                }
            }
            self.ports.d.next = ports;
            let deeper = if ip6 { rotate_words(moved, LONGER) } else { moved };
            for k in 0..TRANSPORT {
                let mut here = false;
                for kind in 0..4 {
                    let (tag, v6) = (kind & 1 == 1, kind & 2 == 2);
                    let at = elab!(8 + k + tag as usize + LONGER * v6 as usize);
                    here = here || tagged == tag && ip6 == v6 && number == elab!((at * 32 / W).to_bits::<4>());
                }
                if here {
                    self.transport.d.next.set_bits::<32>(32 * k, deeper.get_bits::<32>(32 * (8 + k) % W));
                }
            }
            if number == elab!((14 * 8 / W).to_bits::<4>()) {
                self.tci.d.next = be::<W, 16>(data, elab!(14 % (W / 8)));
            }
        }

        self.out.next = Headers {
            dmac: self.words.q.val().get_bits::<48>(0),
            tagged: self.was_tagged.q.val(),
            tci: if self.was_tagged.q.val() { self.tci.q.val() } else { 0.into() },
            ip4: self.was_ip4.q.val(),
            ip6: self.was_ip6.q.val(),
            ip: self.words.q.val().get_bits::<320>(112),
            ports: self.ports.q.val(),
            transport: self.transport.q.val().get_bits::<384>(16),
        };
    }
}
