//! Regions of every page size, on both NICs at once: what lies within a page and across the boundary of two goes where it belongs, by
//! WRITE, READ and SEND, and nothing else is touched.

use driver::{Access, Data, Flags, Mr, Operation, Pd, Translation};
use ferroce_tests::{GUARD, assert_sound, noise, small_pairs, wait};
use testbed::{Setup, Testbed};

/// Bytes moved at one place.
const LEN: usize = 3000;
/// Looked at before and behind it.
const AROUND: usize = 2000;

/// Where something is moved: at the start and the end of the region, across each boundary of pages, and within one.
fn places(page: usize, len: usize) -> Vec<usize> {
    let across = (1..).map(|i| i * page).take_while(|at| at + LEN < len).take(4).map(|at| at - LEN / 2 - 1);
    [0, len - LEN, (len - LEN) / 2 + 1].into_iter().chain(across).collect()
}

fn window(at: usize, len: usize) -> std::ops::Range<usize> {
    at.saturating_sub(AROUND)..(at + LEN + AROUND).min(len)
}

fn bytes_of(mr: &Mr, range: std::ops::Range<usize>) -> Vec<u8> {
    let mut bytes = vec![0; range.len()];
    mr.read(range.start, &mut bytes);
    bytes
}

/// Two NICs, whose regions are of `len` bytes in pages of `page`.
fn moves(setup: &Setup, page: u64, len: usize) {
    let bed = Testbed::new(setup).unwrap();
    let pages = |pd: &Pd| pd.alloc_with(len, Access::all(), Translation::Pages(page)).unwrap();
    let (source, back, target) = (pages(&bed.hosts[0].pd), pages(&bed.hosts[0].pd), pages(&bed.hosts[1].pd));
    let mut pair = bed.connect(&small_pairs()).unwrap();
    for (i, at) in places(page as usize, len).into_iter().enumerate() {
        let what = format!("pages of {page} bytes, place {at}");
        let data: Vec<u8> = (at..at + LEN).map(noise(i as u64)).collect();
        source.write(at, &data);
        let around = window(at, len);
        let mut want = vec![GUARD; around.len()];
        want[at - around.start..][..LEN].copy_from_slice(&data);
        for send in [false, true] {
            target.write(around.start, &vec![GUARD; around.len()]);
            back.write(around.start, &vec![GUARD; around.len()]);
            if send {
                pair.b.qp.post_recv(7, &[target.sge(at, LEN)]).unwrap();
            }
            let mut batch = pair.a.qp.post();
            let there = if send { Operation::Send } else { Operation::Write(target.remote(at)) };
            batch.add(1, there, Data::Sges(&[source.sge(at, LEN)]), Flags::SIGNALED).unwrap();
            let again = Operation::Read(target.remote(at));
            batch.add(2, again, Data::Sges(&[back.sge(at, LEN)]), Flags::SIGNALED | Flags::FENCE).unwrap();
            batch.ring();
            for _ in 0..2 {
                wait(&bed, &mut pair.a.cq, &what).status.unwrap_or_else(|e| panic!("{what}: {e}"));
            }
            if send {
                wait(&bed, &mut pair.b.cq, &what).status.unwrap_or_else(|e| panic!("{what}: {e}"));
            }
            for (mr, whose) in [(&target, "target"), (&back, "what was read back")] {
                assert!(bytes_of(mr, around.clone()) == want, "{what}: {whose}");
            }
        }
    }
    assert_sound(&bed, "pages");
}

#[test]
fn pages_of_64_kib() {
    moves(&Setup::default(), 1 << 16, (4 << 16) + 4096);
    moves(&Setup::small(), 1 << 16, (4 << 16) + 4096);
}

#[test]
fn pages_of_4_kib_and_2_mib() {
    moves(&Setup::default(), 1 << 12, 6 << 12);
    moves(&Setup::small(), 1 << 21, (1 << 21) + 8192);
}

#[test]
fn pages_of_1_gib() {
    moves(&Setup::default(), 1 << 30, 1 << 16);
    moves(&Setup::small(), 1 << 30, 1 << 16);
}

#[test]
#[ignore = "takes 3 GiB of memory: ./ferroce test --all"]
fn across_two_pages_of_1_gib() {
    moves(&Setup::default(), 1 << 30, (1 << 30) + (1 << 16));
}
