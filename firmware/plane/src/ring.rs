//! The command ring and what happens between commands.

use crate::{
    Hardware, Plane,
    words::{Block, get, put},
};
use abi::{
    cmd::{ANSWER, MAX_RING_LOG2, SLOT, answer, head, result},
    queue::event,
};

/// The firmware's end of the command ring.
pub struct Mailbox {
    // Both are what the DMA engine reads and writes; here they are cleared once, not with every command.
    command: Block,
    answer: Block,
    answered: u32,
    /// The producer is where it cannot be, and that was logged.
    astray: bool,
    link: bool,
}

impl Mailbox {
    /// As memory is after start-up: all zero.
    pub const fn new() -> Self {
        Mailbox { command: [0; 16], answer: [0; 16], answered: 0, astray: false, link: false }
    }

    /// Takes over a device fresh from reset.
    pub fn start(&mut self, hw: &mut impl Hardware) {
        self.answered = hw.producer();
        hw.answered(self.answered);
        self.link = hw.port() & 1 == 1;
    }

    /// Executes the next command, if there is one: fetch, execute, answer, count. A producer that is further ahead than the largest
    /// ring has slots is not followed: what it claims are old commands, again and again.
    pub fn step(&mut self, plane: &mut Plane<'_>, hw: &mut impl Hardware) -> bool {
        let waiting = hw.producer().wrapping_sub(self.answered);
        let astray = waiting > 1 << MAX_RING_LOG2;
        if astray && !self.astray {
            hw.log(Line::new().text(b"the command producer is ").number(waiting).text(b" ahead").end());
        }
        self.astray = astray;
        if waiting == 0 || astray {
            return false;
        }
        let ring = hw.ring();
        let slot = self.answered & ((1 << ring.log2) - 1);
        let at = ring.base + slot as u64 * SLOT as u64;
        let (c, a) = (&mut self.command, &mut self.answer);
        a.fill(0);
        if hw.dma_read(at, c) {
            plane.execute(hw, c, a);
        } else {
            c.fill(0);
            put(a, answer::RESULT, result::DEVICE_ERROR as u32);
        }
        if a[0] & 0xff != result::OK as u32 {
            log_refusal(hw, c, a[0]);
        }
        put(a, answer::PHASE, !(self.answered >> ring.log2) & 1);
        let sent = hw.dma_write(at + ANSWER as u64, a);
        self.answered = self.answered.wrapping_add(1);
        hw.answered(self.answered);
        if sent && get(c, head::EVENT) == 1 && plane.eqs.items[0].holder != 0 {
            hw.event(0, event::COMMAND, slot, 0);
        }
        true
    }

    /// Tells the driver when the link came or went.
    pub fn watch_link(&mut self, plane: &Plane<'_>, hw: &mut impl Hardware) {
        let link = hw.port() & 1 == 1;
        if link != self.link {
            self.link = link;
            if plane.eqs.items[0].holder != 0 {
                hw.event(0, event::PORT, 1, link as u32);
            }
        }
    }
}

impl Default for Mailbox {
    fn default() -> Self {
        Self::new()
    }
}

/// A line such as `op 11 owner 1 number 5: result 2 field 104`.
fn log_refusal(hw: &mut impl Hardware, c: &Block, answer0: u32) {
    let mut line = Line::new();
    line.text(b"op ").number(get(c, head::OPCODE)).text(b" owner ").number(get(c, head::OWNER));
    line.text(b" number ").number(get(c, head::NUMBER)).text(b": result ").number(answer0 & 0xff);
    hw.log(line.text(b" field ").number(answer0 >> 16).end());
}

struct Line {
    text: [u8; 64],
    len: usize,
}

impl Line {
    fn new() -> Self {
        Line { text: [b' '; 64], len: 0 }
    }

    /// All of it, with spaces up to a multiple of 4, the last of them a line end.
    fn end(&mut self) -> &[u8] {
        let len = (self.len | 3) + 1;
        self.text[len - 1] = b'\n';
        &self.text[..len]
    }

    #[inline(never)]
    fn text(&mut self, text: &[u8]) -> &mut Self {
        for byte in text {
            self.text[self.len] = *byte;
            self.len += 1;
        }
        self
    }

    fn number(&mut self, mut n: u32) -> &mut Self {
        let (mut digits, mut at) = ([0; 10], 10);
        loop {
            at -= 1;
            digits[at] = b'0' + (n % 10) as u8;
            n /= 10;
            if n == 0 {
                return self.text(&digits[at..]);
            }
        }
    }
}
