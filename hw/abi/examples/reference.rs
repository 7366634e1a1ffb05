//! Prints the reference page: `cargo run -p abi --example reference > docs/reference.md`. A test compares the two.

use abi::{
    Layout, Numbers,
    bar::{self, Access, Register},
    cmd, image, mmio,
    queue::{self, doorbell},
    status, table, wire,
};
use std::fmt::Write;

/// The page.
pub fn page() -> String {
    let mut p = String::from(
        "# Reference\n\n\
        All layouts, registers and numbers that driver, firmware and gates share. Printed from `hw/abi` by\n\
        `cargo run -p abi --example reference > docs/reference.md`; do not edit it by hand.\n\n\
        What a device cannot do of it is refused as UNSUPPORTED, or by a completion with the cause WQE_OPCODE.\n\n\
        Bits are counted from bit 0 of byte 0, little-endian. What is not listed is reserved: write 0, expect nothing.\n",
    );
    section(&mut p, "BAR0: registers");
    let _ = writeln!(
        p,
        "{} KiB; 4-byte accesses unless a register says 8. Counters stand from {:#x} on, 8 bytes each; the MSI-X table ({} \
        vectors) at {:#x}, its pending bits at {:#x}, the firmware's log ring ({} bytes) at {:#x}.\n",
        bar::BAR0_BYTES / 1024,
        bar::COUNTERS,
        bar::MSIX_VECTORS,
        bar::MSIX_TABLE,
        bar::MSIX_PBA,
        bar::FW_LOG_BYTES,
        bar::FW_LOG
    );
    registers(&mut p, bar::REGISTERS);

    section(&mut p, "BAR2: doorbells");
    let _ = writeln!(
        p,
        "A page of {} bytes an owner. 8-byte stores; a doorbell rings only what belongs to the page's owner.\n",
        doorbell::PAGE
    );
    let offsets = [
        ("SQ", doorbell::SQ, "`ring_db`: producer of a send queue"),
        ("RQ", doorbell::RQ, "`ring_db`: producer of a receive queue"),
        ("CQ", doorbell::CQ, "`cq_db`"),
        ("EQ", doorbell::EQ, "`eq_db`"),
        (
            "DIRECT_WQE",
            doorbell::DIRECT_WQE,
            "a WQE of one or two blocks: eight stores a block in ascending order, then the SQ doorbell",
        ),
    ];
    p += "| doorbell | offset | what |\n|---|---|---|\n";
    for (name, offset, what) in offsets {
        let _ = writeln!(p, "| {name} | {offset:#x} | {what} |");
    }
    layouts(&mut p, &[queue::ring_db::LAYOUT, queue::cq_db::LAYOUT, queue::eq_db::LAYOUT]);

    section(&mut p, "Work queues");
    let _ = writeln!(
        p,
        "Rings of {}-byte blocks. A send WQE takes 1 to {} blocks and holds up to {} SGEs, or {} bytes inline, from byte {} on; \
        a receive WQE is one block of {} SGEs. A message is at most {} bytes.",
        queue::WQE_BLOCK,
        queue::MAX_WQE_BLOCKS,
        queue::MAX_SGE,
        queue::MAX_INLINE,
        queue::SEND_PAYLOAD_OFFSET,
        queue::MAX_SGE,
        queue::MAX_MESSAGE
    );
    layouts(&mut p, &[queue::send_wqe::LAYOUT, queue::key_wqe::LAYOUT, queue::ud_target::LAYOUT, queue::sge::LAYOUT]);
    numbers(&mut p, &[queue::send_op::ALL]);

    section(&mut p, "Completions and events");
    layouts(&mut p, &[queue::cqe::LAYOUT, queue::eqe::LAYOUT]);
    numbers(&mut p, &[queue::recv_op::ALL, status::wc::ALL, queue::event::ALL]);
    named(
        &mut p,
        "cause",
        "Why something failed: the CQE's `SYNDROME`, the data of some events.",
        status::cause::NAMES,
    );

    section(&mut p, "Commands");
    let _ = writeln!(
        p,
        "A slot is {} bytes: the command, and from byte {} on its answer. A refused command changes nothing.",
        cmd::SLOT,
        cmd::ANSWER
    );
    numbers(&mut p, &[cmd::op::ALL, cmd::result::ALL]);
    layouts(
        &mut p,
        &[
            cmd::head::LAYOUT,
            cmd::answer::LAYOUT,
            cmd::device::LAYOUT,
            cmd::list_owned::LAYOUT,
            cmd::create_mr::LAYOUT,
            cmd::create_cq::LAYOUT,
            cmd::resize_cq::LAYOUT,
            cmd::create_eq::LAYOUT,
            cmd::create_qp::LAYOUT,
            cmd::modify_qp::LAYOUT,
            cmd::query_qp::LAYOUT,
            cmd::create_srq::LAYOUT,
            cmd::modify_srq::LAYOUT,
            cmd::query_srq::LAYOUT,
            cmd::create_ah::LAYOUT,
            cmd::mcast::LAYOUT,
            cmd::set_gid::LAYOUT,
            cmd::set_port::LAYOUT,
            cmd::set_multicast::LAYOUT,
            cmd::set_vfs::LAYOUT,
        ],
    );
    numbers(&mut p, &[cmd::attr::ALL, cmd::kind::ALL, cmd::key_kind::ALL]);

    section(&mut p, "Tables on the chip");
    p += "Rows as the firmware writes them over the table bus.\n";
    numbers(
        &mut p,
        &[
            table::id::ALL,
            table::qp_state::ALL,
            table::qp_type::ALL,
            table::access::ALL,
            table::invalidate::ALL,
            table::verdict::ALL,
        ],
    );
    layouts(
        &mut p,
        &[
            table::qp_state_row::LAYOUT,
            table::qp_address::LAYOUT,
            table::qp_send::LAYOUT,
            table::qp_recv::LAYOUT,
            table::qp_recv_read::LAYOUT,
            table::srq::LAYOUT,
            table::pace::LAYOUT,
            table::cq::LAYOUT,
            table::eq::LAYOUT,
            table::key::LAYOUT,
            table::gid::LAYOUT,
            table::port::LAYOUT,
            table::multicast::LAYOUT,
            table::member::LAYOUT,
        ],
    );

    section(&mut p, "Registers of the control processor");
    let _ = writeln!(
        p,
        "At {:#x}, beside at most {} KiB of RAM at 0; the log ring at offset {:#x}.\n",
        mmio::BASE,
        mmio::RAM_BYTES / 1024,
        mmio::LOG
    );
    registers(&mut p, mmio::REGISTERS);

    section(&mut p, "Counters");
    p += "64-bit, in the counter window of BAR0.\n\n| index | offset | name | what |\n|---|---|---|---|\n";
    for (i, (name, doc)) in status::counter::NAMES.iter().enumerate() {
        let _ = writeln!(p, "| {i} | {:#x} | {name} | {} |", bar::COUNTERS + 8 * i, text(doc));
    }

    section(&mut p, "Firmware image");
    p += "A file: this header, then the code, which is loaded at address 0.\n";
    layouts(&mut p, &[image::header::LAYOUT]);

    section(&mut p, "Wire");
    let _ = writeln!(p, "UDP port {}.\n", wire::ROCE_PORT);
    p += "| opcode | name | headers behind the BTH |\n|---|---|---|\n";
    for opcode in 0..=255 {
        let Some(info) = wire::op_info(opcode) else { continue };
        let prefixes = [
            (wire::transport::RC, "RC "),
            (wire::transport::UC, "UC "),
            (wire::transport::UD, "UD "),
            (wire::transport::CNP, ""),
        ];
        let prefix = prefixes.iter().find(|(number, _)| *number == opcode & 0xe0).map_or("", |(_, name)| name);
        let parts = [
            (info.deth, "DETH"),
            (info.reth, "RETH"),
            (info.atomic, "AtomicETH"),
            (info.aeth, "AETH"),
            (info.atomic_ack, "AtomicAckETH"),
            (info.imm, "ImmDt"),
            (info.ieth, "IETH"),
            (info.payload, "payload"),
        ];
        let parts: Vec<_> = parts.iter().filter(|(there, _)| *there).map(|(_, name)| *name).collect();
        let _ = writeln!(p, "| {opcode:#04x} | {prefix}{} | {} |", info.name, parts.join(", "));
    }
    numbers(&mut p, &[wire::syndrome::ALL]);
    p
}

fn section(p: &mut String, title: &str) {
    let _ = write!(p, "\n## {title}\n\n");
}

/// Documentation as one line of a table.
fn text(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn registers(p: &mut String, registers: &[Register]) {
    *p += "| register | offset | bytes | access | what |\n|---|---|---|---|---|\n";
    for r in registers {
        let access = match r.access {
            Access::Ro => "read",
            Access::Rw => "read, write",
            Access::Wo => "write",
        };
        let _ = writeln!(p, "| {} | {:#05x} | {} | {access} | {} |", r.name, r.offset, r.bytes, text(r.doc));
    }
}

fn layouts(p: &mut String, layouts: &[Layout]) {
    for l in layouts {
        let _ = write!(p, "\n### {}\n\n{} {} bytes.\n\n", l.name, text(l.doc), l.bytes);
        *p += "| field | bits | byte | what |\n|---|---|---|---|\n";
        for f in l.fields {
            let bits = match f.bits {
                1 => format!("{}", f.lsb),
                n => format!("{}:{}", f.lsb + n - 1, f.lsb),
            };
            let _ = writeln!(p, "| {} | {bits} | {} | {} |", f.name, f.lsb / 8, text(f.doc));
        }
    }
}

fn numbers(p: &mut String, lists: &[Numbers]) {
    for list in lists {
        let _ = write!(p, "\n### {}\n\n{}\n\n", list.name, text(list.doc));
        let bare = list.values.iter().all(|(_, _, doc)| doc.is_empty());
        *p += if bare { "| name | number |\n|---|---|\n" } else { "| name | number | what |\n|---|---|---|\n" };
        for (name, number, doc) in list.values {
            let doc = if bare { String::new() } else { format!(" {} |", text(doc)) };
            let _ = writeln!(p, "| {name} | {number:#x} |{doc}");
        }
    }
}

fn named(p: &mut String, name: &str, doc: &str, names: &[(&str, &str)]) {
    let _ = write!(p, "\n### {name}\n\n{doc}\n\n| name | number | what |\n|---|---|---|\n");
    for (i, (name, doc)) in names.iter().enumerate() {
        let _ = writeln!(p, "| {name} | {i:#x} | {} |", text(doc));
    }
}

#[allow(dead_code)] // as a module of the test
fn main() {
    print!("{}", page());
}
