//! The hardware twin of statements: Rust code that, run once, builds the circuit. `let`s become named values, `if` and
//! `match` on hardware values build all their branches, loops run.
use crate::common::*;
use crate::hardware::Hardware;
use crate::pattern::{Pattern, pattern};
use crate::place::{Place, field_of};
use proc_macro2::{Span, TokenStream};
use quote::{format_ident, quote, quote_spanned};
use syn::{spanned::Spanned, *};

const NO_JUMPS: &str = "`return`, `break` and `continue` do not exist in hardware: all paths are built; use `if`";

impl Hardware {
    pub fn block(&mut self, b: &Block) -> R<TokenStream> {
        let saved = self.vars.clone();
        let stmts = self.statements(&b.stmts, false, None);
        self.vars = saved;
        stmts
    }
    /// A block that gives a value. `hint` is a name for it.
    pub fn block_value(&mut self, b: &Block, hint: Option<&str>) -> R<TokenStream> {
        let has_value = match b.stmts.last() {
            Some(Stmt::Expr(_, None)) => true,
            Some(Stmt::Macro(m)) => m.semi_token.is_none(),
            _ => false,
        };
        if !has_value {
            return err(b, "this block must end in a value (no `;`)");
        }
        let saved = self.vars.clone();
        let stmts = self.inside(|h| h.statements(&b.stmts, true, hint));
        self.vars = saved;
        let stmts = stmts?;
        Ok(quote!({ #stmts }))
    }
    /// Runs `f` inside an expression.
    pub fn inside<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> T {
        self.depth += 1;
        let r = f(self);
        self.depth -= 1;
        r
    }
    /// Collects the errors of all statements instead of stopping at the first.
    fn statements(&mut self, stmts: &[Stmt], value: bool, hint: Option<&str>) -> R<TokenStream> {
        let (mut out, mut error) = (TokenStream::new(), None::<Error>);
        for (i, s) in stmts.iter().enumerate() {
            let line = line(s.span());
            match self.statement(s, value && i + 1 == stmts.len(), hint) {
                Ok(t) => out.extend(quote!(::hdl::rt::at(#line); #t)),
                Err(e) => match &mut error {
                    None => error = Some(e),
                    Some(x) => x.combine(e),
                },
            }
        }
        match error {
            None => Ok(out),
            Some(e) => Err(e),
        }
    }
    fn statement(&mut self, s: &Stmt, is_value: bool, hint: Option<&str>) -> R<TokenStream> {
        match s {
            Stmt::Expr(e, None) if is_value => self.value(e, hint),
            Stmt::Macro(m) if is_value => self.macro_value(&m.mac),
            Stmt::Expr(e, _) => self.effect(e),
            Stmt::Local(l) => self.local(l),
            Stmt::Item(Item::Const(c)) => Ok(quote!(#c)),
            Stmt::Item(i) => err(i, "items other than `const` are not allowed in a kernel"),
            Stmt::Macro(m) => self.macro_statement(&m.mac),
        }
    }

    // ---- let
    fn local(&mut self, l: &Local) -> R<TokenStream> {
        let Some(init) = &l.init else {
            return err(l, "`let` needs its value here: `let x = ..;`");
        };
        if let Some((_, d)) = &init.diverge {
            return err(d, "`let .. else` is not supported in a kernel");
        }
        let (pat, ty) = match &l.pat {
            Pat::Type(t) => (&*t.pat, Some(&*t.ty)),
            p => (p, None),
        };
        match pat {
            Pat::Ident(p) if p.by_ref.is_none() && p.subpat.is_none() => self.named_local(p, ty, &init.expr),
            Pat::Tuple(t) => {
                let v = self.value(&init.expr, None)?;
                let ty = ty.map(hardware_type).transpose()?.map(|t| quote!(: #t));
                let mut out = quote!(let __t #ty = #v;);
                for (i, p) in t.elems.iter().enumerate() {
                    let i = syn::Index::from(i);
                    match p {
                        Pat::Wild(_) => {}
                        Pat::Ident(p) if p.mutability.is_none() && p.by_ref.is_none() => {
                            let (n, s) = (&p.ident, p.ident.to_string());
                            self.vars.remove(&s);
                            out.extend(quote!(let #n = ::hdl::rt::bind(#s, __t.#i);))
                        }
                        p => return err(p, "only plain names and `_` in a tuple `let`"),
                    }
                }
                Ok(out)
            }
            p => err(p, "only `let name`, `let mut name` and `let (a, b)` are supported in a kernel"),
        }
    }
    fn named_local(&mut self, p: &PatIdent, ty: Option<&Type>, init: &Expr) -> R<TokenStream> {
        let (n, s, sp) = (&p.ident, p.ident.to_string(), init.span());
        let v = self.value(init, Some(&s))?;
        if p.mutability.is_some() {
            self.vars.insert(s.clone(), self.depth);
            return match ty {
                Some(t) if is_static(t) => err(
                    t,
                    "a `let mut` is a hardware variable: give it a Bits<N>, Bit, enum or struct type (Rust integers cannot change in a kernel)",
                ),
                Some(t) => Ok(quote_spanned!(sp=> let #n = ::hdl::rt::var::<#t>(#s, #v);)),
                None => Ok(quote_spanned!(sp=> let #n = ::hdl::rt::var(#s, #v);)),
            };
        }
        self.vars.remove(&s);
        let is_array = matches!(ty, Some(Type::Array(_))) || matches!(strip(init), Expr::Array(_) | Expr::Repeat(_));
        let bind = if is_array { quote!(bind_array) } else { quote!(bind) };
        Ok(match ty {
            None | Some(Type::Infer(_)) => quote_spanned!(sp=> let #n = ::hdl::rt::#bind(#s, #v);),
            Some(t) if is_static(t) => quote!(let #n: #t = #v;),
            Some(t @ Type::Path(_)) => quote_spanned!(sp=> let #n = ::hdl::rt::bind_as::<#t>(#s, #v);),
            Some(t) => {
                let t = hardware_type(t)?;
                quote_spanned!(sp=> let #n: #t = ::hdl::rt::#bind(#s, #v);)
            }
        })
    }

    // ---- statements with an effect
    fn effect(&mut self, e: &Expr) -> R<TokenStream> {
        let pure = matches!(
            e,
            Expr::Assign(_) | Expr::Binary(_) | Expr::ForLoop(_) | Expr::If(_) | Expr::Match(_) | Expr::Block(_)
        );
        if self.depth > 0 && !pure {
            return err(e, "only `let`, variable assignments and loops are allowed inside an expression");
        }
        match e {
            Expr::Paren(p) => self.effect(&p.expr),
            Expr::Group(p) => self.effect(&p.expr),
            Expr::Assign(a) => {
                let v = self.value(&a.right, None)?;
                self.assign(&a.left, v, a.right.span())
            }
            Expr::Binary(b) if compound_operator(&b.op).is_some() => {
                let o = compound_operator(&b.op).unwrap();
                let v = self.value(&b.right, None)?;
                let Expr::Path(p) = strip(&b.left) else {
                    return err(&b.left, "compound assignment only to a `let mut` variable");
                };
                self.assign(&b.left, quote!((#p #o (#v))), b.right.span())
            }
            Expr::If(i) => self.conditional(i),
            Expr::Match(m) => self.match_(m, None, false),
            Expr::ForLoop(f) => {
                if let Some(l) = &f.label {
                    return err(l, "labels are not supported in a kernel");
                }
                let x = self.value(&f.expr, None)?;
                let (p, b) = (&f.pat, self.block(&f.body)?);
                Ok(quote!(for #p in #x { #b }))
            }
            Expr::Block(b) => {
                let b = self.block(&b.block)?;
                Ok(quote!({ #b }))
            }
            Expr::Macro(m) => self.macro_statement(&m.mac),
            Expr::Tuple(t) if t.elems.is_empty() => Ok(TokenStream::new()),
            Expr::MethodCall(m) if m.method == "set_bits" => self.set_bits(m),
            Expr::Call(c) => self.connect(c),
            Expr::While(_) | Expr::Loop(_) => {
                err(e, "only `for` loops with bounds known at elaboration are supported in a kernel")
            }
            Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) => err(e, NO_JUMPS),
            e => err(
                e,
                "this statement has no hardware meaning: expected an assignment, `let`, `if`, `match`, `for`, `link` or `join`",
            ),
        }
    }
    fn conditional(&mut self, i: &ExprIf) -> R<TokenStream> {
        if let Expr::Let(l) = &*i.cond {
            return err(l, "`if let` is not supported in a kernel");
        }
        let c = self.value(&i.cond, None)?;
        let t = self.block(&i.then_branch)?;
        let f = match &i.else_branch {
            None => None,
            Some((_, e)) => Some(match &**e {
                Expr::Block(b) => self.block(&b.block)?,
                e => {
                    let (line, f) = (line(e.span()), self.effect(e)?);
                    quote!(::hdl::rt::at(#line); #f)
                }
            }),
        };
        let f = f.map(|f| quote!(if __c.els() { #f }));
        let test = quote_spanned!(i.cond.span()=> ::hdl::rt::test(#c));
        Ok(quote!({ let __c = #test; if __c.then() { #t } #f __c.end(); }))
    }
    /// `self.signal.next.set_bits::<M>(offset, value)`.
    fn set_bits(&mut self, m: &ExprMethodCall) -> R<TokenStream> {
        const FORM: &str = "write `self.signal.next.set_bits::<M>(offset, value)`";
        let Expr::Field(f) = strip(&m.receiver) else {
            return err(&m.receiver, FORM);
        };
        let (true, Some(p), 2) =
            (member(&f.member).is_some_and(|m| m == "next"), Place::parse(self, &f.base)?, m.args.len())
        else {
            return err(m, FORM);
        };
        let (offset, v) = (self.value(&m.args[0], None)?, self.value(&m.args[1], None)?);
        let width = match m.turbofish.as_ref().and_then(|t| t.args.first()) {
            Some(a) => quote!(#a),
            None => quote!(_),
        };
        let set = p.write(&|place, name| quote!(::hdl::rt::set_bits::<_, #width, _>(&#place, #name, __o, __v);));
        Ok(quote!({ let __o = #offset; let __v = #v; #set }))
    }
    /// `Interface::link(&mut self.a, &mut self.b)` and `join`.
    fn connect(&mut self, c: &ExprCall) -> R<TokenStream> {
        const FORM: &str = "only `Interface::link(..)` and `Interface::join(..)` can be called as statements";
        let (Expr::Path(p), 2) = (&*c.func, c.args.len()) else {
            return err(c, FORM);
        };
        let l = last(&p.path);
        if (l != "link" && l != "join") || p.path.segments.len() < 2 {
            return err(c, FORM);
        }
        let mut path = p.path.clone();
        path.segments.last_mut().unwrap().ident = format_ident!("{}_hdl", l, span = l.span());
        let mut names = vec![];
        for a in &c.args {
            let place = match a {
                Expr::Reference(r) if r.mutability.is_some() => Place::parse(self, &r.expr)?,
                _ => None,
            };
            match place {
                Some(p) => names.push(p.name()),
                None => return err(a, "write `&mut self.interface`"),
            }
        }
        Ok(quote!(::hdl::rt::links(#path("", #(&(#names)),*));))
    }
    /// An assignment of the value `v` to a signal, a variable, or a field of one.
    fn assign(&mut self, left: &Expr, v: TokenStream, sp: Span) -> R<TokenStream> {
        // the user's place for errors, but our own names: `sp` may come from another macro
        let sp = sp.resolved_at(Span::call_site());
        let left = strip(left);
        let (mut fields, mut l) = (vec![], left);
        loop {
            match l {
                Expr::Field(f) if member(&f.member).is_some_and(|m| m == "next") => {
                    if self.depth > 0 {
                        return err(left, "signals cannot be assigned inside an expression");
                    }
                    let Some(p) = Place::parse(self, &f.base)? else {
                        return err(left, "only `self...next` can be assigned");
                    };
                    fields.reverse();
                    let field = (!fields.is_empty()).then(|| field_of(&fields));
                    let set = p.write(&|place, name| match &field {
                        None => quote_spanned!(sp=> ::hdl::rt::assign(&#place, #name, __v);),
                        Some(f) => quote_spanned!(sp=> ::hdl::rt::assign_field(&#place, #name, #f, __v);),
                    });
                    return Ok(quote!({ let __v = #v; #set }));
                }
                Expr::Field(f) => {
                    match member(&f.member) {
                        Some(m) if m == "val" => return err(left, "assign to `.next`, not to `.val`"),
                        Some(m) => fields.push(m),
                        None => return err(left, "tuple fields cannot be assigned"),
                    }
                    l = strip(&f.base)
                }
                Expr::Path(p) if p.path.get_ident().is_some_and(|i| i != "self") => {
                    let declared = self.vars.get(&p.path.get_ident().unwrap().to_string());
                    if self.depth > 0 && declared.is_some_and(|d| *d != self.depth) {
                        return err(
                            left,
                            "a variable of an outer block cannot change inside an expression: the order of evaluation would be lost",
                        );
                    }
                    fields.reverse();
                    return Ok(if fields.is_empty() {
                        quote_spanned!(sp=> ::hdl::rt::set_var(#p, #v);)
                    } else {
                        let f = field_of(&fields);
                        quote_spanned!(sp=> ::hdl::rt::set_var_field(#p, #f, #v);)
                    });
                }
                _ => {
                    return err(
                        left,
                        "only `self...next`, `self...next.field` and `let mut` variables can be assigned",
                    );
                }
            }
        }
    }
    pub fn match_(&mut self, m: &ExprMatch, hint: Option<&str>, is_value: bool) -> R<TokenStream> {
        let s = self.value(&m.expr, None)?;
        let n = m.arms.len();
        let mut arms = TokenStream::new();
        let (mut has_integers, mut wild) = (false, false);
        for (i, a) in m.arms.iter().enumerate() {
            if let Some((g, _)) = &a.guard {
                return err(g, "match guards are not supported in a kernel: use `if` inside the arm");
            }
            if wild {
                return err(&a.pat, "unreachable: `_` comes before this arm");
            }
            let labels = match pattern(&a.pat)? {
                Pattern::Wild => {
                    wild = true;
                    vec![]
                }
                Pattern::Alternatives { values, integers } => {
                    has_integers |= integers;
                    // rustc has checked that an enum match is exhaustive: its last arm is the default
                    if i + 1 == n && !has_integers { vec![] } else { values }
                }
            };
            let mut b = if is_value { self.value(&a.body, hint)? } else { self.effect(&a.body)? };
            if is_value {
                b = quote!(__j.set(#b);)
            }
            let line = line(a.body.span());
            arms.extend(quote!({ __m.case(::std::vec![#(__m.pattern(#labels)),*]); ::hdl::rt::at(#line); #b }))
        }
        if has_integers && !wild {
            return err(m, "a match on integers needs a last `_ =>` arm");
        }
        let start = quote_spanned!(m.expr.span()=> ::hdl::rt::match_(#s));
        Ok(if is_value {
            let hint = hint.unwrap_or("match_value");
            quote!({ let __j = ::hdl::rt::Join::new(#hint); let __m = #start; #arms __m.end(); __j.get() })
        } else {
            quote!({ let __m = #start; #arms __m.end(); })
        })
    }
    fn macro_statement(&mut self, m: &Macro) -> R<TokenStream> {
        if Setup::is(m) {
            return self.setup(m);
        }
        match macro_name(m).as_str() {
            "comment" => {
                let t = &m.tokens;
                Ok(quote!(::hdl::rt::comment(#t);))
            }
            n => err(m, format!("macro `{n}!` is not supported in a kernel")),
        }
    }
    fn setup(&mut self, m: &Macro) -> R<TokenStream> {
        let s = Setup::parse(m)?;
        let mut place = |t: &TokenStream| -> R<Place> {
            let e: Expr = parse2(t.clone())?;
            match Place::parse(self, &e)? {
                Some(p) => Ok(p),
                None => err(t, "expected a field of this block"),
            }
        };
        let clock = place(&s.clock)?.read();
        let rst = s.rst.as_ref().map(&mut place).transpose()?.map(|p| p.read());
        let mut out = TokenStream::new();
        for sub in &s.subs {
            let p = place(sub)?;
            let (t, n) = (p.tokens(), p.name());
            out.extend(match macro_name(m).as_str() {
                "regs" => quote!(::hdl::rt::regs_hdl(&#t, #n, #clock, #rst);),
                "dff_setup" => quote!(::hdl::rt::dffs_hdl(&#t, #n, #clock);),
                _ => {
                    let rst = rst.as_ref().map(|r| quote!(::hdl::rt::assign(&#t.rst, #n + "$rst", #r);));
                    quote!(::hdl::rt::assign(&#t.clock, #n + "$clock", #clock); #rst)
                }
            })
        }
        Ok(out)
    }
}
pub fn no_jumps<T>(e: &Expr) -> R<T> {
    err(e, NO_JUMPS)
}
