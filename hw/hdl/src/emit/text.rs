//! Lines of Verilog: indentation, line breaks, and the Rust line each statement comes from.
use crate::ir::Loc;

/// Longer lines are broken at spaces.
const COLUMNS: usize = 120;

#[derive(Default)]
pub struct Writer {
    pub out: String,
    depth: usize,
    last: Option<Loc>,
}
impl Writer {
    /// A line at the present indentation.
    pub fn line(&mut self, s: &str) {
        let mut indent = 2 * self.depth;
        let mut rest = s;
        while indent + rest.len() > COLUMNS {
            let room = COLUMNS.saturating_sub(indent).max(40);
            let Some(cut) = rest.char_indices().take_while(|c| c.0 < room).filter(|c| c.1 == ' ').last() else { break };
            if rest[..cut.0].contains("//") {
                break; // not inside a comment
            }
            self.push(indent, &rest[..cut.0]);
            rest = &rest[cut.0 + 1..];
            indent = 2 * self.depth + 4
        }
        self.push(indent, rest)
    }
    fn push(&mut self, indent: usize, s: &str) {
        self.out.push_str(&" ".repeat(indent));
        self.out.push_str(s);
        self.out.push('\n')
    }
    /// A line with the Rust line it comes from, where that changes.
    pub fn line_at(&mut self, s: &str, at: Loc) {
        if self.last == Some(at) || at.line == 0 {
            return self.line(s);
        }
        self.last = Some(at);
        let file = at.file.rsplit(['/', '\\']).next().unwrap();
        self.line(&format!("{s}  // {file}:{}", at.line))
    }
    pub fn indent(&mut self) {
        self.depth += 1
    }
    pub fn dedent(&mut self) {
        self.depth -= 1
    }
    /// Text as it is.
    pub fn raw(&mut self, s: &str) {
        self.out.push_str(s);
        if !s.is_empty() && !s.ends_with('\n') {
            self.out.push('\n')
        }
    }
}

/// `[7:0] `, or nothing for one bit.
pub fn range(width: usize) -> String {
    if width == 1 { String::new() } else { format!("[{}:0] ", width - 1) }
}
