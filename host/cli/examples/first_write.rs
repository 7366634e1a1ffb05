//! The driver by example: two hosts, a queue pair between them, one WRITE and one READ.
//!
//! `./ferroce setup`, then `cargo run -p ferroce-cli --example first_write`. Everything but the `Testbed` is the driver's own interface,
//! the same over a simulated NIC and over a card.

use driver::{Access, Data, Flags, Operation};
use testbed::{Connect, Setup, Testbed};

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}"); // says what to type if a tool is missing
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn std::error::Error>> {
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
    for (what, operation, at) in
        [("WRITE", Operation::Write(theirs.remote(0)), 0), ("READ", Operation::Read(theirs.remote(0)), 4096)]
    {
        let start = bed.ns();
        let mut batch = pair.a.qp.post();
        batch.add(1, operation, Data::Sges(&[ours.sge(at, 19)]), Flags::SIGNALED)?;
        batch.ring();
        let done = pair.a.cq.wait(); // polls, and lets simulated time pass
        done.status?;
        println!("{what}: {:.1} us from doorbell to completion", (bed.ns() - start) / 1e3);
    }

    let mut back = [0; 19];
    ours.read(4096, &mut back);
    println!("read back: {:?}", std::str::from_utf8(&back)?);
    assert_eq!(&back, b"from gates to verbs");
    Ok(())
}
