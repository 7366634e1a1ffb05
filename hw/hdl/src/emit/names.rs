//! Names in the Verilog: RustHDL's `a$b` becomes `a_b`, keywords get `_k`, and within a module every name is taken once.
use std::collections::BTreeMap;

/// IEEE 1800 keywords.
const KEYWORDS: &str = "\
    accept_on alias always always_comb always_ff always_latch and assert assign assume automatic before begin bind \
    bins binsof bit break buf bufif0 bufif1 byte case casex casez cell chandle checker class clocking cmos config \
    const constraint context continue cover covergroup coverpoint cross deassign default defparam design disable \
    dist do edge else end endcase endclass endclocking endconfig endfunction endgenerate endgroup endinterface \
    endmodule endpackage endprimitive endprogram endproperty endsequence endspecify endtable endtask enum event \
    eventually expect export extends extern final first_match for force foreach forever fork forkjoin function \
    generate genvar global highz0 highz1 if iff ifnone ignore_bins illegal_bins implements implies import incdir \
    include initial inout input inside instance int integer interconnect interface intersect join join_any \
    join_none large let liblist library local localparam logic longint macromodule matches medium modport module \
    nand negedge nettype new nexttime nmos nor noshowcancelled not notif0 notif1 null or output package packed \
    parameter pmos posedge primitive priority program property protected pull0 pull1 pulldown pullup \
    pulsestyle_ondetect pulsestyle_onevent pure rand randc randcase randsequence rcmos real realtime ref reg \
    reject_on release repeat restrict return rnmos rpmos rtran rtranif0 rtranif1 s_always s_eventually s_nexttime \
    s_until s_until_with scalared sequence shortint shortreal showcancelled signed small soft solve specify \
    specparam static string strong strong0 strong1 struct super supply0 supply1 sync_accept_on sync_reject_on table \
    tagged task this throughout time timeprecision timeunit tran tranif0 tranif1 tri tri0 tri1 triand trior trireg \
    type typedef union unique unique0 unsigned until until_with untyped use uwire var vectored virtual void wait \
    wait_order wand weak weak0 weak1 while wildcard wire with within wor xnor xor";

/// C++ keywords that are not Verilog's: Verilator makes a C++ name of every Verilog name.
const CPP_KEYWORDS: &str = "\
    and_eq asm auto bitand bitor bool catch char compl delete double explicit false float friend goto inline long \
    mutable namespace not_eq operator or_eq private public register short sizeof switch template throw true try \
    typename volatile xor_eq";

/// The Verilog name of a signal: `$` becomes `_`, and a keyword gets `_k`.
pub fn verilog_name(name: &str) -> String {
    let n = name.replace('$', "_");
    let keyword = KEYWORDS.split(' ').chain(CPP_KEYWORDS.split(' ')).any(|k| k == n);
    if keyword { n + "_k" } else { n }
}

/// `rtl::axis::Slice<Bits<8>, 64>` as `Slice_Bits_8_64`.
pub fn type_name(full: &str) -> String {
    let word = |w: &str| w.rsplit("::").next().unwrap().to_string();
    let words = full.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'));
    words.filter(|w| !w.is_empty()).map(word).collect::<Vec<_>>().join("_")
}

/// The names taken in one module (or, for modules, in one design), each with what took it.
#[derive(Default)]
pub struct Names(BTreeMap<String, String>);
impl Names {
    /// Takes the Verilog name of a signal; fails with the name of the signal that has it already.
    pub fn exact(&mut self, signal: &str) -> Result<String, String> {
        let n = verilog_name(signal);
        match self.0.insert(n.clone(), signal.into()) {
            None => Ok(n),
            Some(other) => Err(other),
        }
    }
    pub fn is_taken(&self, name: &str) -> bool {
        self.0.contains_key(name)
    }
    /// Takes `name`, or the first of `name_2`, `name_3` .. that is free.
    pub fn fresh(&mut self, name: &str) -> String {
        let base = verilog_name(name.trim_start_matches("r#"));
        let mut n = base.clone();
        let mut k = 1;
        while self.0.contains_key(&n) {
            k += 1;
            n = format!("{base}_{k}")
        }
        self.0.insert(n.clone(), name.into());
        n
    }
}
