//! The stream kit: packets survive random stalls, and each breach of the protocol is caught.

use hdl::prelude::*;
use verilate::{
    Model, Options, PortInfo,
    bench::{self, Sink, Source, Stall},
};

/// A block with a packet stream in and one out; `body` drives `m_*` and `s_ready`.
fn block(body: &str) -> Model {
    let (input, output) = (PortInfo::input, PortInfo::output);
    let names = [("data", 64), ("bytes", 4), ("last", 1), ("valid", 1)];
    let mut ports = vec![input("clock", 1), input("rst", 1), output("s$ready", 1), input("m$ready", 1)];
    ports.extend(names.map(|(name, bits)| input(&format!("s${name}"), bits)));
    ports.extend(names.map(|(name, bits)| output(&format!("m${name}"), bits)));
    let list: Vec<_> = ports
        .iter()
        .map(|p| {
            let direction = if p.input { "input" } else { "output" };
            format!("{direction} [{}:0] {}", p.bits - 1, p.name.replace('$', "_"))
        })
        .collect();
    let text = format!("module top({});\n{body}\nendmodule", list.join(", "));
    let waive = vec!["WIDTHEXPAND", "ASCRANGE"];
    Model::from_verilog(&text, &ports, Options { waive, ..Options::default() }).unwrap()
}

const PAYLOAD: &str = "assign m_data = s_data; assign m_bytes = s_bytes; assign m_last = s_last;";

#[test]
fn packets_pass_in_order_under_all_stalls() {
    let mut m = block(&format!("{PAYLOAD} assign m_valid = s_valid; assign s_ready = m_ready;"));
    for (seed, stall) in [Stall::Never, Stall::Rate(0.7), Stall::Random].into_iter().enumerate() {
        m.reset();
        let mut s = Source::new(&m, "s", stall, seed as u64);
        let mut k = Sink::new(&m, "m", stall, 100 + seed as u64);
        let packets: Vec<Vec<u8>> = (1..200).map(|n| (0..n).map(|i| (n * 7 + i) as u8).collect()).collect();
        packets.iter().for_each(|packet| s.push_packet(packet));
        k.expect_packets(packets.len() as u64);
        bench::run(&mut m, &mut [&mut s, &mut k], 100_000);
        packets.iter().for_each(|packet| assert_eq!(k.pop_packet().as_ref(), Some(packet)));
        assert!(k.is_empty() && s.is_empty());
    }
}

#[test]
fn beats_by_field() {
    let mut m = block(&format!("{PAYLOAD} assign m_valid = s_valid; assign s_ready = m_ready;"));
    let (mut s, mut k) = (Source::new(&m, "s", Stall::Never, 1), Sink::new(&m, "m", Stall::Random, 2));
    s.push(s.beat().with("data", u64::MAX).with("bytes", 5));
    k.expect(1);
    bench::run(&mut m, &mut [&mut s, &mut k], 1000);
    let beat = k.pop().unwrap();
    assert_eq!((beat.get("data"), beat.get("bytes")), (u64::MAX, 5));
    assert_eq!(format!("{beat:?}"), "{data: ffffffffffffffff, bytes: 05, last: 00}");
}

/// Pushes one packet of many beats through a block that is wrong.
fn breach(body: &str) {
    let mut m = block(body);
    let (mut s, mut k) = (Source::new(&m, "s", Stall::Never, 1), Sink::new(&m, "m", Stall::Rate(0.5), 2));
    s.push_packet(&[1; 800]);
    k.expect_packets(1);
    bench::run(&mut m, &mut [&mut s, &mut k], 1000);
}

#[test]
#[should_panic(expected = "`m` dropped valid before ready")]
fn valid_may_not_drop() {
    breach(&format!(
        "reg t; always @(posedge clock) t <= !t; {PAYLOAD} assign m_valid = s_valid & t; assign s_ready = m_ready & t;"
    ));
}

#[test]
#[should_panic(expected = "`m` changed its payload while stalled")]
fn the_payload_may_not_change() {
    breach(
        "reg [63:0] n; always @(posedge clock) n <= n + 64'd1; assign m_data = n; assign m_bytes = s_bytes; \
            assign m_last = s_last; assign m_valid = s_valid; assign s_ready = m_ready;",
    );
}

#[test]
#[should_panic(
    expected = "`verilog` is not done after 1000 cycles: `s` took 0 beats, 100 left; `m` gave 0/0 beats, 0/1"
)]
fn a_dead_block_is_reported() {
    let mut m = block(&format!("{PAYLOAD} assign m_valid = 1'b0; assign s_ready = 1'b0;"));
    let (mut s, mut k) = (Source::new(&m, "s", Stall::Never, 1), Sink::new(&m, "m", Stall::Never, 2));
    s.push_packet(&[1; 800]);
    k.expect_packets(1);
    bench::run(&mut m, &mut [&mut s, &mut k], 1000);
}

#[test]
#[should_panic(expected = "`m.ready` of `verilog` points the other way")]
fn directions_are_checked() {
    let m = block(&format!("{PAYLOAD} assign m_valid = s_valid; assign s_ready = m_ready;"));
    Source::new(&m, "m", Stall::Never, 1);
}

#[derive(Copy, Clone, Debug, PartialEq, LogicState)]
pub enum Kind {
    Read,
    Write,
    Atomic,
}

#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Inner {
    flag: Bit,
    kind: Kind,
    gid: Bits<128>,
}

#[derive(Copy, Clone, Debug, PartialEq, Default, LogicStruct)]
pub struct Request {
    psn: Bits<24>,
    inner: Inner,
    len: Bits<13>,
}

#[derive(LogicInterface, Clone, Debug, Default)]
#[join = "RequestSink"]
pub struct RequestSource {
    data: Signal<Out, Request>,
    valid: Signal<Out, Bit>,
    ready: Signal<In, Bit>,
}

#[derive(LogicInterface, Clone, Debug, Default)]
#[join = "RequestSource"]
pub struct RequestSink {
    data: Signal<In, Request>,
    valid: Signal<In, Bit>,
    ready: Signal<Out, Bit>,
}

/// Raises the PSN of every request by one.
#[derive(LogicBlock, Default)]
struct Next {
    pub clock: Signal<In, Clock>,
    pub s: RequestSink,
    pub m: RequestSource,
}

impl Logic for Next {
    #[kernel]
    fn update(&mut self) {
        let request = self.s.data.val();
        self.m.data.next = Request { psn: request.psn + 1, inner: request.inner, len: request.len };
        self.m.valid.next = self.s.valid.val();
        self.s.ready.next = self.m.ready.val();
    }
}

#[test]
fn messages_by_type_and_by_field() {
    let mut m = Model::of(Next::default, Options::default()).unwrap();
    let (mut s, mut k) = (Source::new(&m, "s", Stall::Random, 1), Sink::new(&m, "m", Stall::Random, 2));
    let request = |psn: u64| Request {
        psn: psn.into(),
        inner: Inner {
            flag: psn.is_multiple_of(2),
            kind: if psn < 90 { Kind::Atomic } else { Kind::Write },
            gid: Bits::<128>::from(psn) << 100,
        },
        len: (8191 - psn).into(),
    };
    (0..100).for_each(|psn| s.send(request(psn)));
    k.expect(100);
    bench::run(&mut m, &mut [&mut s, &mut k], 10_000);
    let got = k.pop().unwrap();
    assert_eq!([got.get("psn"), got.get("data.len"), got.get("inner.kind"), got.get("inner.flag")], [1, 8191, 2, 1]);
    for psn in 1..100 {
        let want = Request { psn: (psn + 1).into(), ..request(psn) };
        assert_eq!(k.pop(), Some(k.message(want)));
    }
    // The same fields straight at the ports.
    m.set_bytes("s.data", &verilate::bits::of(request(5)));
    assert_eq!((m.get("s.data.psn"), m.get("s.data.inner.kind"), m.get("s.data.len")), (5, 2, 8186));
    m.set("s.data.inner.flag", 1);
    m.eval();
    assert_eq!((m.get("m.data.psn"), m.get("m.data.inner.flag"), m.get("m.data.len")), (6, 1, 8186));
    assert_eq!(m.get_bytes("m.data.inner.gid")[12..], [0x50, 0, 0, 0]);
    let shown = format!("{:?}", s.message(request(5)));
    assert!(shown.starts_with("{data.psn: 000005, data.inner.flag: 00, data.inner.kind: 02, "), "{shown}");
}
