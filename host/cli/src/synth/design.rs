//! The core's Verilog, cut into modules.

use std::collections::{BTreeSet, HashMap};

/// The module of the library that ours instantiate.
const LIBRARY: &str = "picorv32";

/// Verilog text as modules.
pub struct Design {
    modules: Vec<(String, String)>,
    at: HashMap<String, usize>,
    /// Third-party text, taken whole by what needs its first module.
    library: String,
}

impl Design {
    /// Cuts Verilog at `module` and `endmodule`, each at the start of a line; what is outside of modules is dropped. `library` is
    /// text that stays whole, for the modules that name the processor in it.
    pub fn parse(verilog: &str, library: &str) -> Self {
        let mut d = Design { modules: Vec::new(), at: HashMap::new(), library: library.into() };
        let mut inside = false;
        for line in verilog.lines() {
            if let Some(rest) = line.strip_prefix("module ") {
                let name: String = rest.chars().take_while(|c| is_word(*c)).collect();
                d.at.insert(name.clone(), d.modules.len());
                d.modules.push((name, String::new()));
                inside = true;
            }
            if inside {
                let text = &mut d.modules.last_mut().expect("inside a module").1;
                text.push_str(line);
                text.push('\n');
            }
            inside &= !line.starts_with("endmodule");
        }
        d
    }

    /// Modules that `module` instantiates: those of its own instances, in text order, each once.
    pub fn parts(&self, module: &str) -> Vec<&str> {
        let mut found: Vec<&str> = Vec::new();
        let text = self.at.get(module).map_or("", |i| self.modules[*i].1.as_str());
        for line in text.lines().skip(1) {
            // `Name instance (` or `Name #(`.
            let mut words = line.split_whitespace();
            let (Some(name), Some(next)) = (words.next(), words.next()) else { continue };
            let instance = next.starts_with("#(") || next.chars().all(is_word) && words.next() == Some("(");
            if let Some((name, i)) = self.at.get_key_value(name).filter(|_| instance)
                && !found.contains(&name.as_str())
                && self.modules[*i].0 != module
            {
                found.push(name);
            }
        }
        found
    }

    /// The text of `module` and of all modules below it, in the order of the text: the same for the same hardware.
    pub fn closure(&self, module: &str) -> String {
        let mut need = BTreeSet::new();
        let mut open = vec![module];
        while let Some(m) = open.pop() {
            if need.insert(self.at[m]) {
                open.extend(self.parts(m));
            }
        }
        let mut text: String = need.into_iter().map(|i| self.modules[i].1.as_str()).collect();
        if text.contains(&format!("\n  {LIBRARY} #(")) {
            text.push_str(&self.library);
        }
        text
    }

    /// The text of `module`, and of the modules in it their ports alone.
    pub fn shell(&self, module: &str) -> String {
        let mut text = self.modules[self.at[module]].1.clone();
        for part in self.parts(module) {
            let body = &self.modules[self.at[part]].1;
            let header = body.split_inclusive(");").next().expect("a module has ports");
            text.push_str(&format!("(* blackbox *)\n{}\nendmodule\n", header.replace("output reg", "output wire")));
        }
        text
    }
}

fn is_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
module state (
  input wire a,
  output reg b
);
always @(*) b = !a;
endmodule

module Middle (
  input wire a,
  output logic b
);
  logic state;
  state u_state (
    .a(a),
    .b(b)
  );
  picorv32 #(
    .N(1)
  ) core (.a(a));
endmodule

module top (
  input wire a,
  output logic b
);
  Middle u_first (
    .a(a)
  );
  Middle u_second (
    .a(a),
    .b(b)
  );
endmodule
";
    const LIBRARY_TEXT: &str = "`define X\nmodule picorv32 (input a);\n  parameter N = 0;\nendmodule\n";

    #[test]
    fn modules_are_found_with_what_they_contain() {
        let d = Design::parse(TEXT, LIBRARY_TEXT);
        assert_eq!(d.parts("top"), ["Middle"]);
        assert_eq!(d.parts("Middle"), ["state"]);
        let closure = d.closure("Middle");
        assert!(closure.contains("module state (") && closure.ends_with(LIBRARY_TEXT) && !closure.contains("u_first"));
        let shell = d.shell("top");
        assert!(
            shell.contains("u_second")
                && shell.contains("(* blackbox *)\nmodule Middle (")
                && !shell.contains("u_state")
        );
    }
}
