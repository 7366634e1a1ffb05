//! The walk over scatter/gather entries, for the completer; the responder uses its map.
//!
//! Where byte `offset` of a message lies is found anew each time, from the ends (prefix sums) of the four entries. So
//! nothing is carried from packet to packet, and a retry may begin anywhere. Three steps, with registers between them:
//!
//! ```text
//! cycle    0                1                2                       3
//!          SGEs -> map      offset -> entry  entry -> stretch        next entry (offset, want advanced) ...
//! ```

use hdl::prelude::*;

/// Four SGEs, laid out for [`sge_stretch`]: where each ends in the message, its address, its key.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct SgeMap {
    /// Bytes of SGE 0.
    pub end0: Bits<34>,
    /// Bytes of SGEs 0 and 1.
    pub end1: Bits<34>,
    /// Bytes of SGEs 0 to 2.
    pub end2: Bits<34>,
    /// Bytes of all of them: the most that a message may have.
    pub total: Bits<34>,
    /// Addresses, SGE 0 lowest.
    pub vas: Bits<256>,
    /// L_Keys, SGE 0 lowest.
    pub keys: Bits<128>,
}

/// A stretch of memory within one SGE.
#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Stretch {
    /// L_Key.
    pub key: Bits<32>,
    /// Virtual address.
    pub va: Bits<64>,
    /// Bytes: as many as are wanted, or up to the end of the SGE.
    pub len: Bits<14>,
    /// It is all that was wanted.
    pub last: Bit,
    /// Where its SGE ends in the message: the next stretch begins there, if one follows.
    pub end: Bits<32>,
}

/// Prefix sums over four SGEs of 16 bytes (`abi::queue::sge`), SGE 0 lowest.
#[hdl_fn]
pub fn sge_map(sges: Bits<512>) -> SgeMap {
    let l0 = sges.get_bits::<32>(96).cast::<34>();
    let l1 = sges.get_bits::<32>(224).cast::<34>();
    let l2 = sges.get_bits::<32>(352).cast::<34>();
    let l3 = sges.get_bits::<32>(480).cast::<34>();
    let two = l0 + l1;
    let three = two + l2;
    SgeMap {
        end0: l0,
        end1: two,
        end2: three,
        total: two + (l2 + l3),
        vas: cat!(sges.get_bits::<64>(384), sges.get_bits::<64>(256), sges.get_bits::<64>(128), sges.get_bits::<64>(0)),
        keys: cat!(
            sges.get_bits::<32>(448),
            sges.get_bits::<32>(320),
            sges.get_bits::<32>(192),
            sges.get_bits::<32>(64)
        ),
    }
}

/// What entry `n` has.
#[hdl_fn]
pub fn select<const N: usize>(n: Bits<2>, a: Bits<N>, b: Bits<N>, c: Bits<N>, d: Bits<N>) -> Bits<N> {
    if n.get_bit(1) {
        if n.get_bit(0) { d } else { c }
    } else if n.get_bit(0) {
        b
    } else {
        a
    }
}

/// The entry that byte `offset` of the message, which must lie below `map.total`, lies in.
#[hdl_fn]
pub fn sge_entry(map: SgeMap, offset: Bits<32>) -> Bits<2> {
    let at = offset.cast::<34>();
    let (in0, in1, in2) = (at < map.end0, at < map.end1, at < map.end2);
    cat!(2; !in1, !in0 && (in1 || !in2))
}

/// The first stretch of the `want` bytes at byte `offset`, which lies in `entry`.
#[hdl_fn]
pub fn sge_stretch(map: SgeMap, entry: Bits<2>, offset: Bits<32>, want: Bits<14>) -> Stretch {
    let at = offset.cast::<34>();
    let start = select::<34>(entry, 0.into(), map.end0, map.end1, map.end2);
    let end = select::<34>(entry, map.end0, map.end1, map.end2, map.total);
    let (vas, keys) = (map.vas, map.keys);
    let va = select::<64>(
        entry,
        vas.get_bits::<64>(0),
        vas.get_bits::<64>(64),
        vas.get_bits::<64>(128),
        vas.get_bits::<64>(192),
    );
    let key = select::<32>(
        entry,
        keys.get_bits::<32>(0),
        keys.get_bits::<32>(32),
        keys.get_bits::<32>(64),
        keys.get_bits::<32>(96),
    );
    let room = end - at;
    let fits = want.cast::<34>() <= room;
    let len = if fits { want } else { room.get_bits::<14>(0) };
    Stretch { key, va: va + (at - start).cast::<64>(), len, last: fits, end: end.get_bits::<32>(0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::kit::{bytes_of, options};
    use rand::RngExt;
    use verilate::Model;

    #[derive(LogicBlock, Default)]
    struct Walk {
        pub sges: Signal<In, Bits<512>>,
        pub offset: Signal<In, Bits<32>>,
        pub want: Signal<In, Bits<14>>,
        pub step: Signal<Out, Stretch>,
        pub total: Signal<Out, Bits<34>>,
    }
    impl Logic for Walk {
        #[kernel]
        fn update(&mut self) {
            let map = sge_map(self.sges.val());
            self.total.next = map.total;
            let entry = sge_entry(map, self.offset.val());
            self.step.next = sge_stretch(map, entry, self.offset.val(), self.want.val());
        }
    }

    #[test]
    fn stretches_follow_the_entries() {
        let mut m = Model::of(Walk::default, options()).unwrap();
        let mut rng = verilate::rng(1);
        for _ in 0..verilate::scale(2000) {
            let sges: Vec<(u64, u32, u32)> = (0..4)
                .map(|_| {
                    let len = [0, 1, rng.random_range(0..5000), rng.random::<u32>() >> rng.random_range(0..32)];
                    (rng.random::<u64>() >> 1, rng.random(), len[rng.random_range(0..4)])
                })
                .collect();
            let mut block = vec![];
            for (va, key, len) in &sges {
                block.extend(va.to_le_bytes());
                block.extend(key.to_le_bytes());
                block.extend(len.to_le_bytes());
            }
            m.set_bytes("sges", &block);
            let total: u64 = sges.iter().map(|s| s.2 as u64).sum();
            if total == 0 {
                continue;
            }
            let offset = rng.random_range(0..total.min(1 << 32));
            let want = rng.random_range(1..=16383);
            m.set("offset", offset);
            m.set("want", want);
            m.eval();
            assert_eq!(m.get("total"), total);
            let mut begin = 0;
            let (i, at) = (0..4)
                .find_map(|i| {
                    let here = (offset >= begin && offset < begin + sges[i].2 as u64).then_some((i, offset - begin));
                    begin += sges[i].2 as u64;
                    here
                })
                .unwrap();
            let room = sges[i].2 as u64 - at;
            let want = Stretch {
                key: sges[i].1.to_bits(),
                va: (sges[i].0 + at).to_bits(),
                len: want.min(room).to_bits(),
                last: want <= room,
                end: ((offset + room) & 0xffff_ffff).to_bits(),
            };
            assert_eq!(m.bytes("step"), bytes_of(want), "offset {offset} of {sges:?}");
        }
    }
}
