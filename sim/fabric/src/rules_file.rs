//! Fault rules from a TOML file.
//!
//! ```toml
//! [[rule]]                    # of all conditions that are given; the first rule that matches a frame fires
//! from = 0                    # sent by this end of the link, 0 or 1
//! qpn = 0x12                  # destination QPN
//! opcode = "READ_RESPONSE_LAST"   # name as in captures, or number
//! psn = [0xfffff0, 0x10]      # first and last; may wrap
//! nth = 3                     # only the third of these
//! probability = 1e-3
//! action = "drop"             # or "duplicate", "mark-ce", "truncate",
//!                             # "corrupt" (part = "any", "header", "payload" or "icrc"),
//!                             # "delay" (ns = 2000), "reorder" (behind = 3, the frames that pass it)
//! ```

use crate::fault::{Action, Match, Part};
use abi::wire::op_info;
use nic::NS;
use serde::Deserialize;

/// Why a file of rules cannot be used: which rule, what, and what is possible.
#[derive(Debug, thiserror::Error)]
pub enum RulesError {
    /// No TOML, or a field that is not known or has the wrong type.
    #[error(transparent)]
    Syntax(#[from] toml::de::Error),
    /// A value that is not possible.
    #[error("rule {rule}: {why}")]
    Rule {
        /// Which rule, from 1.
        rule: usize,
        /// What, and what is possible.
        why: String,
    },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    rule: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    from: Option<u8>,
    qpn: Option<u32>,
    opcode: Option<Opcode>,
    psn: Option<[u32; 2]>,
    nth: Option<u64>,
    probability: Option<f64>,
    action: Kind,
    part: Option<PartName>,
    ns: Option<u32>,
    behind: Option<u32>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Opcode {
    Number(u8),
    Name(String),
}

#[derive(Deserialize, Clone, Copy, PartialEq)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    Drop,
    Duplicate,
    MarkCe,
    Truncate,
    Corrupt,
    Delay,
    Reorder,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "lowercase")]
enum PartName {
    Any,
    Header,
    Payload,
    Icrc,
}

/// The rules in `text`, in order.
pub fn parse_rules(text: &str) -> Result<Vec<(Match, Action)>, RulesError> {
    let file: File = toml::from_str(text)?;
    let rules = file.rule.into_iter().enumerate();
    rules.map(|(i, e)| e.rule().map_err(|why| RulesError::Rule { rule: i + 1, why })).collect()
}

impl Entry {
    fn rule(self) -> Result<(Match, Action), String> {
        let opcode = self.opcode.map(Opcode::number).transpose()?;
        let within = |what: &str, value: u64, least: u64, most: u64| {
            let good = (least..=most).contains(&value);
            if good { Ok(()) } else { Err(format!("{what} = {value}: {least} to {most} is possible")) }
        };
        within("from", self.from.unwrap_or(0).into(), 0, 1)?;
        within("qpn", self.qpn.unwrap_or(0).into(), 0, 0xff_ffff)?;
        within("nth", self.nth.unwrap_or(1), 1, u64::MAX)?;
        for psn in self.psn.into_iter().flatten() {
            within("psn", psn.into(), 0, 0xff_ffff)?;
        }
        if let Some(p) = self.probability.filter(|p| !(0.0..=1.0).contains(p)) {
            return Err(format!("probability = {p}: 0 to 1 is possible"));
        }
        for (given, field, of) in [
            (self.part.is_some(), "part", Kind::Corrupt),
            (self.ns.is_some(), "ns", Kind::Delay),
            (self.behind.is_some(), "behind", Kind::Reorder),
        ] {
            if given && self.action != of {
                return Err(format!("{field} does not go with this action"));
            }
        }
        let action = match self.action {
            Kind::Drop => Action::Drop,
            Kind::Duplicate => Action::Duplicate,
            Kind::MarkCe => Action::MarkCe,
            Kind::Truncate => Action::Truncate,
            Kind::Corrupt => Action::Corrupt(match self.part.unwrap_or(PartName::Any) {
                PartName::Any => Part::Any,
                PartName::Header => Part::Header,
                PartName::Payload => Part::Payload,
                PartName::Icrc => Part::Icrc,
            }),
            Kind::Delay => {
                let ns = self.ns.ok_or("a delay needs ns = nanoseconds")?;
                Action::Delay(u64::from(ns) * NS)
            }
            Kind::Reorder => {
                let behind = self.behind.unwrap_or(1);
                within("behind", behind.into(), 1, 1000)?;
                Action::Reorder(behind)
            }
        };
        let matches = Match {
            from: self.from.map(usize::from),
            qpn: self.qpn,
            opcode,
            psn: self.psn.map(<(u32, u32)>::from),
            nth: self.nth,
            probability: self.probability,
        };
        Ok((matches, action))
    }
}

impl Opcode {
    fn number(self) -> Result<u8, String> {
        let name = match self {
            Opcode::Number(n) => return Ok(n),
            Opcode::Name(name) => name,
        };
        let named = |o: &u8| op_info(*o).is_some_and(|i| i.name.eq_ignore_ascii_case(&name));
        (0..=255).find(named).ok_or_else(|| {
            let names: Vec<_> = (0..32).filter_map(|o| op_info(o).map(|i| i.name)).collect();
            format!("opcode {name:?} is not known; a number from 0 to 255 is possible, or {}", names.join(", "))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use abi::wire::op;

    #[test]
    fn every_condition_and_action_is_read() {
        let text = r#"
            [[rule]]
            from = 1
            qpn = 0x12
            opcode = "read_response_last"
            psn = [0xfffff0, 0x10]
            nth = 3
            probability = 1e-3
            action = "drop"
            [[rule]]
            opcode = 0x81
            action = "corrupt"
            part = "icrc"
            [[rule]]
            action = "delay"
            ns = 2000
            [[rule]]
            action = "reorder"
            behind = 3
            [[rule]]
            action = "mark-ce"
            [[rule]]
            action = "truncate"
            [[rule]]
            action = "duplicate"
            [[rule]]
            action = "corrupt"
        "#;
        let rules = parse_rules(text).unwrap();
        let m = &rules[0].0;
        assert_eq!((m.from, m.qpn, m.opcode), (Some(1), Some(0x12), Some(op::READ_RESPONSE_LAST)));
        assert_eq!((m.psn, m.nth, m.probability), (Some((0xff_fff0, 0x10)), Some(3), Some(1e-3)));
        assert_eq!(rules[1].0.opcode, Some(0x81));
        let actions: Vec<_> = rules.iter().map(|r| r.1).collect();
        assert_eq!(
            actions,
            [
                Action::Drop,
                Action::Corrupt(Part::Icrc),
                Action::Delay(2000 * NS),
                Action::Reorder(3),
                Action::MarkCe,
                Action::Truncate,
                Action::Duplicate,
                Action::Corrupt(Part::Any),
            ]
        );
        assert!(parse_rules("").unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (text, names) in [
            ("from = 2", "from = 2: 0 to 1"),
            ("psn = [0, 0x1000000]", "psn = 16777216"),
            ("qpn = 0x1000000", "qpn = 16777216"),
            ("nth = 0", "nth = 0: 1 to"),
            ("probability = 1.5", "probability = 1.5: 0 to 1"),
            ("probability = nan", "probability = NaN: 0 to 1"),
            ("opcode = \"JUMP\"", "opcode \"JUMP\" is not known"),
            ("ns = 5", "ns does not go with this action"),
            ("part = \"icrc\"", "part does not go with this action"),
            ("behind = 1", "behind does not go with this action"),
        ] {
            let file = format!("[[rule]]\naction = \"drop\"\n[[rule]]\naction = \"drop\"\n{text}");
            let said = parse_rules(&file).unwrap_err().to_string();
            assert!(said.starts_with("rule 2: ") && said.contains(names), "{text}: {said}");
        }
        for (text, names) in [
            ("[[rule]]\naction = \"burn\"", "unknown variant `burn`"),
            ("[[rule]]\nform = 1\naction = \"drop\"", "unknown field `form`"),
            ("[[rule]]\nnth = 1", "missing field `action`"),
            ("[[rules]]", "unknown field `rules`"),
            ("[[rule]]\naction = \"delay\"", "needs ns"),
            ("[[rule]]\naction = \"reorder\"\nbehind = 0", "behind = 0: 1 to 1000"),
            ("no toml", "expected"),
        ] {
            let said = parse_rules(text).unwrap_err().to_string();
            assert!(said.contains(names), "{text}: {said}");
        }
    }
}
