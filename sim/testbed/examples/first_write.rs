//! The driver by example: two hosts, a queue pair between them, one WRITE and one READ.
//!
//! `cargo run -p testbed --example first_write` (once `./ferroce setup` has been typed). Everything but the `Testbed` is the driver's
//! own interface, the same over a simulated NIC and over a card.

use driver::{Access, Data, Flags, Operation};
use testbed::{Connect, Setup, Testbed};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Two hosts with the small NIC each, which is quick to build. `Setup::default()` is the one of 512 bits.
    let bed = Testbed::new(&Setup::small().link(10.0))?;
    let [near, far] = &bed.hosts;
    println!("{} MHz, at most {:?}", near.device.clock_mhz(), near.device.limits());

    // Memory: `alloc` registers fresh pages; the key says who may do what.
    let ours = near.pd.alloc(8192, Access::LOCAL_WRITE)?;
    let theirs = far.pd.alloc(4096, Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ)?;
    ours.write(0, b"from gates to verbs");

    // A queue pair on each host, connected: RESET, INIT, RTR, RTS, each state a type of its own.
    let mut pair = bed.connect(&Connect { mtu: 1024, ..Connect::default() })?;

    // There and back. A batch is posted as a whole by one doorbell.
    let mut batch = pair.a.qp.post();
    batch.add(1, Operation::Write(theirs.remote(0)), Data::Sges(&[ours.sge(0, 19)]), Flags::empty())?;
    batch.add(2, Operation::Read(theirs.remote(0)), Data::Sges(&[ours.sge(4096, 19)]), Flags::SIGNALED)?;
    batch.ring();
    let done = pair.a.cq.wait(); // polls, and lets simulated time pass
    done.status?;

    let mut back = [0; 19];
    ours.read(4096, &mut back);
    println!("request {} is done after {:.1} us: {:?}", done.wr_id, bed.ns() / 1e3, std::str::from_utf8(&back)?);
    assert_eq!(&back, b"from gates to verbs");
    Ok(())
}
