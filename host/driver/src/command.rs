//! The command ring: one command at a time, answered by the firmware.

use crate::bar::Bar;
use crate::function::{Error, PciFunction, Result};
use crate::life::Life;
use crate::memory::{BusSpace, RingMemory};
use crate::patience::Patience;
use crate::reg;
use crate::registers::Registers;
use abi::Field;
use abi::cmd::{ANSWER, QUOTA, SLOT, answer, attr, create_mr, create_qp, head, mcast, modify_qp, op, result, set_vfs};
use abi::table::qp_type;
use std::sync::{Arc, Mutex};

/// Log2 of the slots of the ring.
const LOG2: u32 = 4;
/// A waiting command looks after the device each time after so many turns of its loop.
const TURNS: u32 = 256;

/// A command being filled in.
pub struct Command {
    pub(crate) bytes: [u8; 64],
    /// The first value that does not fit into its field.
    excess: Option<(Field, u64)>,
}

impl Command {
    /// Command `opcode` on behalf of doorbell page `owner`.
    pub fn new(opcode: u8, owner: u16) -> Self {
        Command::raw([0; 64]).with(head::OPCODE, opcode.into()).with(head::OWNER, owner.into())
    }
    /// These bytes, whatever they are.
    pub fn raw(bytes: [u8; 64]) -> Self {
        Command { bytes, excess: None }
    }
    /// Sets a field. A command with a value that does not fit is not executed: no value is ever cut short.
    pub fn with(mut self, field: Field, value: u64) -> Self {
        if value <= field.max() {
            field.set(&mut self.bytes, value);
        } else {
            self.excess.get_or_insert((field, value));
        }
        self
    }

    fn check(&self) -> Result<()> {
        self.excess.map_or(Ok(()), |(field, value)| {
            Err(Error::new(format!("{}: field {} does not hold {value:#x}", name(self), field.name))
                .hint(format!("0 to {:#x} are possible", field.max())))
        })
    }
}

/// An answer.
#[derive(Clone, Copy, Debug)]
pub struct Answer(pub [u8; 64]);

impl Answer {
    /// Reads a field.
    pub fn get(&self, field: Field) -> u64 {
        field.get(&self.0)
    }
}

struct State {
    ring: RingMemory,
    produced: u32,
}

/// The ring.
pub struct CommandRing {
    function: Arc<dyn PciFunction>,
    bar: Arc<Bar>,
    life: Arc<Life>,
    state: Mutex<State>,
}

impl CommandRing {
    /// Sets the ring up; the firmware must be ready.
    pub fn new(function: Arc<dyn PciFunction>, bar: Arc<Bar>, bus: &Arc<BusSpace>, life: Arc<Life>) -> Result<Self> {
        let ring = RingMemory::new(bus, SLOT << LOG2)?;
        reg!(bar, Registers, cmd_base).write(ring.iova());
        reg!(bar, Registers, cmd_log2).write(LOG2);
        let produced = reg!(bar, Registers, cmd_producer).read();
        Ok(CommandRing { function, bar, life, state: Mutex::new(State { ring, produced }) })
    }

    /// Executes a command. The error says which command failed and, by name, why.
    pub fn execute(&self, command: &Command) -> Result<Answer> {
        judge(command, self.submit(command)?)
    }

    /// Executes a command, whatever the answer. The error: there is none, for a value does not fit or the device is gone.
    pub fn submit(&self, command: &Command) -> Result<Answer> {
        command.check()?;
        let mut s = self.state.lock().unwrap_or_else(|e| e.into_inner());
        // A device that was reset may be in another driver's hands.
        self.life.check()?;
        let slot = (s.produced & ((1 << LOG2) - 1)) as usize * SLOT;
        let phase = (s.produced >> LOG2 & 1) as u8 ^ 1;
        s.ring.write(slot, &command.bytes);
        s.produced = s.produced.wrapping_add(1);
        reg!(self.bar, Registers, cmd_producer).write(s.produced);
        let mut patience = Patience::new();
        let (mut turns, mut counted) = (0, false);
        loop {
            let ready = |last: u8| last & 1 == phase;
            if let Some(bytes) = s.ring.read_if::<{ SLOT - ANSWER }>(slot + ANSWER, ready) {
                return Ok(Answer(bytes));
            }
            turns += 1;
            if turns % TURNS == 0 {
                self.life.check()?;
                // A command that is counted has been answered; the answer, written before it was, cannot take longer.
                let lost = counted;
                counted = reg!(self.bar, Registers, cmd_consumer).read() == s.produced;
                if lost && counted {
                    return Err(self.life.loses("what it writes does not reach memory"));
                }
            }
            if patience.ends(&self.bar) {
                note!("ferroce: {} is not answered; the firmware's log is in BAR0 at FW_LOG", name(command));
                return Err(self.life.loses("its firmware does not answer"));
            }
            self.function.relax();
        }
    }
}

fn judge(command: &Command, a: Answer) -> Result<Answer> {
    let field = a.get(answer::FIELD);
    let opcode = head::OPCODE.get(&command.bytes) as u8;
    let why = match a.get(answer::RESULT) as u8 {
        result::OK => return Ok(a),
        result::BAD_OPCODE => "no such command".into(),
        result::BAD_FIELD => format!("field {} is out of range", field_name(command, field)),
        result::NO_ROOM if opcode == op::ATTACH_MCAST => {
            "the group has as many members as it can, or there is no room for another group".into()
        }
        result::IN_USE if opcode == op::ATTACH_MCAST => "the QP is attached to the group already".into(),
        result::NO_OBJECT if opcode == op::DETACH_MCAST && field == mcast::IP_LOW.lsb as u64 => {
            "the QP is not attached to the group".into()
        }
        result::NO_OBJECT => format!("field {} names no object", field_name(command, field)),
        result::NOT_OWNER if field == head::OWNER.lsb as u64 => "only owner 0, who has the port, may do this".into(),
        result::NOT_OWNER => "the object belongs to another owner".into(),
        result::NO_ROOM => "all entries of the table are in use".into(),
        result::IN_USE => "others still refer to the object".into(),
        result::BAD_TRANSITION => "the QP's state does not allow this transition".into(),
        result::MISSING_ATTRIBUTE => format!("attribute {} is missing", attribute_name(field)),
        result::FORBIDDEN_ATTRIBUTE => format!("attribute {} is not allowed in this transition", attribute_name(field)),
        result::UNSUPPORTED => format!("this device does not do {}", feature(command, field)),
        other => format!("device error (result {other})"),
    };
    Err(Error::new(format!("{}: {why}", name(command))))
}

fn name(command: &Command) -> &'static str {
    let opcode = head::OPCODE.get(&command.bytes);
    op::ALL.values.iter().find(|v| v.1 == opcode).map_or("unknown command", |v| v.0)
}

/// The attribute of a bit of `modify_qp::MASK`.
fn attribute_name(bit: u64) -> String {
    let found = attr::ALL.values.iter().find(|v| 1u64.checked_shl(bit as u32) == Some(v.1));
    found.map_or_else(|| format!("at bit {bit}"), |v| v.0.to_string())
}

/// What a device would have to do that does not.
fn feature(command: &Command, lsb: u64) -> String {
    let opcode = head::OPCODE.get(&command.bytes) as u8;
    let bit = lsb.wrapping_sub(modify_qp::MASK.lsb as u64);
    match 1u32.checked_shl(bit as u32).unwrap_or(0) {
        attr::ALT_PATH | attr::PATH_MIG_STATE if opcode == op::MODIFY_QP => {
            format!("automatic path migration ({})", attribute_name(bit))
        }
        _ if opcode == op::CREATE_QP && lsb == create_qp::TYPE.lsb as u64 => {
            let number = create_qp::TYPE.get(&command.bytes);
            let found = qp_type::ALL.values.iter().find(|v| v.1 == number);
            found.map_or_else(|| format!("queue pairs of type {number}"), |v| format!("queue pairs of type {}", v.0))
        }
        _ if opcode == op::CREATE_MR && lsb == create_mr::ON_DEMAND.lsb as u64 => "on-demand paging (ON_DEMAND)".into(),
        _ if gives_rate(command) && lsb == QUOTA.lsb as u64 => "rate limits of queue pairs (RATE_LIMIT)".into(),
        _ if opcode == op::SET_VFS && lsb == set_vfs::COUNT.lsb as u64 => {
            format!("SR-IOV: it has no virtual functions, not {}", set_vfs::COUNT.get(&command.bytes))
        }
        _ => format!("what field {} asks for", field_name(command, lsb)),
    }
}

/// It sets a rate: two fields have other names.
fn gives_rate(command: &Command) -> bool {
    let mask = modify_qp::MASK.get(&command.bytes) as u32;
    head::OPCODE.get(&command.bytes) as u8 == op::MODIFY_QP && mask & attr::RATE_LIMIT != 0
}

/// The field of the command's layout that starts at bit `lsb`.
fn field_name(command: &Command, lsb: u64) -> String {
    if let Some(f) = [QUOTA, BURST].iter().find(|f| gives_rate(command) && f.lsb as u64 == lsb) {
        return f.name.into();
    }
    use abi::cmd::*;
    let layout = match head::OPCODE.get(&command.bytes) as u8 {
        op::CREATE_MR => create_mr::LAYOUT,
        op::CREATE_CQ => create_cq::LAYOUT,
        op::RESIZE_CQ => resize_cq::LAYOUT,
        op::CREATE_EQ => create_eq::LAYOUT,
        op::CREATE_QP => create_qp::LAYOUT,
        op::MODIFY_QP => modify_qp::LAYOUT,
        op::ATTACH_MCAST | op::DETACH_MCAST => mcast::LAYOUT,
        op::SET_GID => set_gid::LAYOUT,
        op::SET_PORT => set_port::LAYOUT,
        op::SET_MULTICAST => set_multicast::LAYOUT,
        op::LIST_OWNED => list_owned::LAYOUT,
        op::CREATE_AH => return name_in(&[create_ah::LAYOUT, modify_qp::LAYOUT, head::LAYOUT], lsb),
        op::SET_VFS => set_vfs::LAYOUT,
        _ => head::LAYOUT,
    };
    name_in(&[layout, head::LAYOUT], lsb)
}

fn name_in(layouts: &[abi::Layout], lsb: u64) -> String {
    let found = layouts.iter().flat_map(|l| l.fields).find(|f| f.lsb as u64 == lsb);
    found.map_or_else(|| format!("at bit {lsb}"), |f| f.name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(c: Command, code: u8, field: u64) -> String {
        let mut bytes = [0; 64];
        answer::RESULT.set(&mut bytes, code.into());
        answer::FIELD.set(&mut bytes, field);
        judge(&c, Answer(bytes)).unwrap_err().to_string()
    }

    #[test]
    fn a_refusal_names_field_attribute_and_feature() {
        let modify = || Command::new(op::MODIFY_QP, 1);
        let rate = || modify().with(modify_qp::MASK, attr::RATE_LIMIT.into());
        let mask = |bit: u64| modify_qp::MASK.lsb as u64 + bit;
        for (c, code, field, why) in [
            (modify(), result::MISSING_ATTRIBUTE, 15, "MODIFY_QP: attribute MIN_RNR_TIMER is missing"),
            (modify(), result::FORBIDDEN_ATTRIBUTE, 20, "attribute DEST_QPN is not allowed in this transition"),
            (modify(), result::FORBIDDEN_ATTRIBUTE, 31, "attribute at bit 31 is not allowed"),
            (modify(), result::UNSUPPORTED, mask(14), "does not do automatic path migration (ALT_PATH)"),
            (modify(), result::UNSUPPORTED, mask(18), "does not do automatic path migration (PATH_MIG_STATE)"),
            (modify(), result::BAD_FIELD, modify_qp::DMAC.lsb as u64, "field DMAC is out of range"),
            (modify(), result::NOT_OWNER, head::NUMBER.lsb as u64, "MODIFY_QP: the object belongs to another owner"),
            (
                Command::new(op::SET_PORT, 1),
                result::NOT_OWNER,
                head::OWNER.lsb as u64,
                "SET_PORT: only owner 0, who has the port, may do this",
            ),
            (modify(), result::NO_OBJECT, head::NUMBER.lsb as u64, "field NUMBER names no object"),
            (
                Command::new(op::CREATE_QP, 1).with(create_qp::TYPE, qp_type::XRC_TGT.into()),
                result::UNSUPPORTED,
                create_qp::TYPE.lsb as u64,
                "CREATE_QP: this device does not do queue pairs of type XRC_TGT",
            ),
            (
                Command::new(op::CREATE_QP, 1).with(create_qp::TYPE, 9),
                result::UNSUPPORTED,
                create_qp::TYPE.lsb as u64,
                "queue pairs of type 9",
            ),
            (
                Command::new(op::CREATE_MR, 1).with(create_mr::ON_DEMAND, 1),
                result::UNSUPPORTED,
                create_mr::ON_DEMAND.lsb as u64,
                "CREATE_MR: this device does not do on-demand paging (ON_DEMAND)",
            ),
            (
                Command::new(op::SET_VFS, 0).with(set_vfs::COUNT, 4),
                result::UNSUPPORTED,
                set_vfs::COUNT.lsb as u64,
                "SET_VFS: this device does not do SR-IOV: it has no virtual functions, not 4",
            ),
            (rate(), result::UNSUPPORTED, QUOTA.lsb as u64, "does not do rate limits of queue pairs (RATE_LIMIT)"),
            (rate(), result::BAD_FIELD, abi::cmd::BURST.lsb as u64, "MODIFY_QP: field BURST is out of range"),
            (
                Command::new(op::CREATE_AH, 1),
                result::BAD_FIELD,
                modify_qp::HOP_LIMIT.lsb as u64,
                "CREATE_AH: field HOP_LIMIT is out of range",
            ),
            (
                Command::new(op::ATTACH_MCAST, 1),
                result::IN_USE,
                mcast::NUMBER.lsb as u64,
                "ATTACH_MCAST: the QP is attached to the group already",
            ),
            (
                Command::new(op::ATTACH_MCAST, 1),
                result::NO_ROOM,
                0,
                "ATTACH_MCAST: the group has as many members as it can, or there is no room for another group",
            ),
            (
                Command::new(op::DETACH_MCAST, 1),
                result::NO_OBJECT,
                mcast::IP_LOW.lsb as u64,
                "DETACH_MCAST: the QP is not attached to the group",
            ),
            (Command::new(99, 1), result::BAD_OPCODE, 0, "unknown command: no such command"),
        ] {
            let e = refusal(c, code, field);
            assert!(e.contains(why), "{e}");
        }
    }

    #[test]
    fn a_value_that_does_not_fit_is_refused_by_name_and_not_cut_short() {
        for (field, value) in [(modify_qp::SQ_PSN, 0x100_0005), (modify_qp::RETRY_CNT, 8), (modify_qp::TIMEOUT, 32)] {
            let most = Command::new(op::MODIFY_QP, 1).with(field, field.max());
            assert!(most.check().is_ok() && field.get(&most.bytes) == field.max());
            let e = most.with(field, value).with(modify_qp::PORT, 1).check().unwrap_err().to_string();
            assert!(e.contains(&format!("MODIFY_QP: field {} does not hold {value:#x}", field.name)), "{e}");
            assert!(e.contains(&format!("0 to {:#x}", field.max())), "{e}");
        }
    }
}
