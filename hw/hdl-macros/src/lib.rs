//! `#[kernel]` and `#[hdl_fn]`: keep the Rust body as the simulation model and write, beside it, Rust code that builds
//! the hardware (see `hdl::rt`). Everything not named here is a compile error at its own span.
use proc_macro2::{Span, TokenStream as TS};
use quote::{format_ident, quote, quote_spanned};
use std::collections::HashSet;
use syn::{
    parse::Parser, parse_macro_input, parse_quote, parse_quote_spanned, punctuated::Punctuated, spanned::Spanned,
    visit::Visit, visit_mut::VisitMut, *,
};

type R<T> = syn::Result<T>;
fn err<T>(s: impl quote::ToTokens, m: impl std::fmt::Display) -> R<T> {
    Err(Error::new_spanned(s, m))
}
fn err_at<T>(s: Span, m: impl std::fmt::Display) -> R<T> {
    Err(Error::new(s, m))
}

#[proc_macro_attribute]
pub fn kernel(attr: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let f = parse_macro_input!(item as ItemFn);
    let orig = f.clone();
    let go = || -> R<TS> {
        if !attr.is_empty() {
            return err(&f.sig, "#[kernel] takes no arguments");
        }
        if f.sig.ident != "update"
            || f.sig.inputs.len() != 1
            || !matches!(f.sig.inputs.first(), Some(FnArg::Receiver(r)) if r.reference.is_some() && r.mutability.is_some())
        {
            return err(&f.sig, "#[kernel] goes on `fn update(&mut self)` in `impl Logic for ..`");
        }
        let hdl = Hdl::default().block_stmts(&f.block)?;
        let conn = Connect::default().block(&f.block);
        let mut sim = f.clone();
        Sim.visit_item_fn_mut(&mut sim);
        Ok(quote! {
            #[allow(unreachable_patterns, unused_parens, unused_braces, clippy::all)] #sim
            #[allow(unused, clippy::all)] fn connect(&mut self) { #conn }
            #[allow(unused, unreachable_patterns, unused_parens, unused_braces, clippy::all)] fn hdl(&self) -> ::rust_hdl::prelude::ast::Verilog { ::hdl::rt::kernel(|| { #hdl }) }
        })
    };
    // on error keep the plain function: rustc then reports nothing but our message
    go().unwrap_or_else(|e| {
        let e = e.to_compile_error();
        let sig = &orig.sig;
        quote! { #[allow(unused)] #sig { #e } }
    })
    .into()
}

#[proc_macro_attribute]
pub fn hdl_fn(_attr: proc_macro::TokenStream, item: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let f = parse_macro_input!(item as ItemFn);
    let go = || -> R<TS> {
        let mut args = vec![];
        let mut binds = vec![];
        for a in &f.sig.inputs {
            let FnArg::Typed(a) = a else {
                return err(a, "#[hdl_fn] is for free functions; a kernel is a method");
            };
            let Pat::Ident(p) = &*a.pat else {
                return err(&a.pat, "plain argument names only in #[hdl_fn]");
            };
            let (n, s, t) = (&p.ident, p.ident.to_string(), &a.ty);
            if p.mutability.is_some() {
                return err(p, "`mut` arguments are not supported: use `let mut`");
            }
            match &**t {
                t if is_static(t) => args.push(quote!(#n: #t)),
                Type::Path(_) => {
                    args.push(quote!(#n: impl ::hdl::rt::ToEx<#t>));
                    binds.push(quote!(let #n = ::hdl::rt::bind_as::<#t>(#s, #n);))
                }
                t => {
                    let m = map_ty(t)?;
                    let b = if let Type::Array(_) = t { quote!(bind_arr) } else { quote!(bind) };
                    args.push(quote!(#n: #m));
                    binds.push(quote!(let #n = ::hdl::rt::#b(#s, #n);))
                }
            }
        }
        let ReturnType::Type(_, ret) = &f.sig.output else {
            return err(&f.sig, "an #[hdl_fn] is pure: it must return a value");
        };
        let (vis, name, (ig, _, wc), body) = (
            &f.vis,
            &f.sig.ident,
            f.sig.generics.split_for_impl(),
            Hdl::default().block_value(&f.block, Some(&f.sig.ident.to_string()))?,
        );
        let mret = map_ty(ret)?;
        let body = if matches!(**ret, Type::Path(_)) && !is_static(ret) {
            quote!(::hdl::rt::lift::<#ret>(#body))
        } else {
            body
        };
        let mut sim = f.clone();
        Sim.visit_item_fn_mut(&mut sim);
        Ok(quote! {
            #[allow(unused_parens, unused_braces, clippy::all)] #sim
            #[allow(non_camel_case_types)] #[doc(hidden)] #vis struct #name {}
            impl #name { #[doc(hidden)] #[allow(unused, unused_parens, unused_braces, clippy::all)] #[track_caller] pub fn hdl #ig (#(#args),*) -> #mret #wc { #(#binds)* #body } }
        })
    };
    go().unwrap_or_else(|e| {
        let e = e.to_compile_error();
        let sig = &f.sig;
        quote! { #sig { #e } }
    })
    .into()
}

// ---------------------------------------------------------------------------------------------- helpers
const INTS: [&str; 13] =
    ["u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize", "str"];
fn is_static(t: &Type) -> bool {
    matches!(t, Type::Path(p) if p.path.get_ident().is_some_and(|i| INTS.contains(&i.to_string().as_str())))
}
/// the hardware twin of a type: integers stay, arrays and tuples go element-wise, the rest is `Ex<T>`
fn map_ty(t: &Type) -> R<TS> {
    Ok(match t {
        t if is_static(t) => quote!(#t),
        Type::Path(_) => quote!(::hdl::rt::Ex<#t>),
        Type::Array(a) => {
            let (e, n) = (map_ty(&a.elem)?, &a.len);
            quote!([#e; #n])
        }
        Type::Tuple(x) => {
            let e = x.elems.iter().map(map_ty).collect::<R<Vec<_>>>()?;
            quote!((#(#e,)*))
        }
        Type::Paren(p) => map_ty(&p.elem)?,
        Type::Infer(_) => quote!(_),
        _ => {
            return err(
                t,
                "type not supported in a kernel: use Bits<N>, Bit, a LogicState, a LogicStruct, an integer, or an array or tuple of these",
            );
        }
    })
}
fn camel(i: &Ident) -> bool {
    let s = i.to_string();
    s.starts_with(char::is_uppercase) && s.chars().any(char::is_lowercase)
}
fn shouty(i: &Ident) -> bool {
    let s = i.to_string();
    s.starts_with(char::is_uppercase) && !s.chars().any(char::is_lowercase)
}
fn strip(e: &Expr) -> &Expr {
    match e {
        Expr::Paren(p) => strip(&p.expr),
        Expr::Group(g) => strip(&g.expr),
        e => e,
    }
}
fn last(p: &Path) -> &Ident {
    &p.segments.last().unwrap().ident
}
fn member(m: &Member) -> Option<&Ident> {
    match m {
        Member::Named(i) => Some(i),
        _ => None,
    }
}
/// an unsuffixed literal that i32 cannot hold gets a suffix, so that the integer fallback never bites
fn big_lit(l: &LitInt) -> R<TS> {
    Ok(if l.suffix().is_empty() && l.base10_parse::<u128>()? > i32::MAX as u128 {
        let v: u128 = l.base10_parse()?;
        let s = if v > u64::MAX as u128 { "u128" } else { "u64" };
        let l = LitInt::new(&format!("{}{s}", l.token()), l.span());
        quote!(#l)
    } else {
        quote!(#l)
    })
}
fn cmp_fn(o: &BinOp) -> Option<&'static str> {
    Some(match o {
        BinOp::Eq(_) => "eq",
        BinOp::Ne(_) => "ne",
        BinOp::Lt(_) => "lt",
        BinOp::Le(_) => "le",
        BinOp::Gt(_) => "gt",
        BinOp::Ge(_) => "ge",
        _ => return None,
    })
}
/// `x < 5` or `5 > x`: the other operand, the relation, the literal as u128
fn lit_cmp(b: &ExprBinary) -> Option<(&Expr, TS, TS)> {
    let int = |e: &Expr| match strip(e) {
        Expr::Lit(ExprLit { lit: Lit::Int(l), .. }) if l.suffix().is_empty() => l.base10_parse::<u128>().ok(),
        _ => None,
    };
    let (e, k, swap) = match (int(&b.left), int(&b.right)) {
        (None, Some(k)) => (&*b.right, k, false),
        (Some(k), None) => (&*b.left, k, true),
        _ => return None,
    };
    let other = if swap { &*b.right } else { &*b.left };
    let r = match (&b.op, swap) {
        (BinOp::Eq(_), _) => quote!(Eq),
        (BinOp::Ne(_), _) => quote!(Ne),
        (BinOp::Lt(_), false) | (BinOp::Gt(_), true) => quote!(Lt),
        (BinOp::Le(_), false) | (BinOp::Ge(_), true) => quote!(Le),
        (BinOp::Gt(_), false) | (BinOp::Lt(_), true) => quote!(Gt),
        (BinOp::Ge(_), false) | (BinOp::Le(_), true) => quote!(Ge),
        _ => return None,
    };
    let l = LitInt::new(&format!("{k}u128"), e.span());
    Some((other, quote!(::hdl::rt::Rel::#r), quote!(#l)))
}
fn op_of_assign(o: &BinOp) -> Option<TS> {
    Some(match o {
        BinOp::AddAssign(_) => quote!(+),
        BinOp::SubAssign(_) => quote!(-),
        BinOp::BitAndAssign(_) => quote!(&),
        BinOp::BitOrAssign(_) => quote!(|),
        BinOp::BitXorAssign(_) => quote!(^),
        BinOp::ShlAssign(_) => quote!(<<),
        BinOp::ShrAssign(_) => quote!(>>),
        _ => return None,
    })
}
fn args_of(m: &Macro) -> R<Vec<Expr>> {
    Ok(Punctuated::<Expr, Token![,]>::parse_terminated.parse2(m.tokens.clone())?.into_iter().collect())
}
/// `cat!(a, b)` or `cat!(W; a, b)`: the width, and the parts
fn cat_args(m: &Macro) -> R<(TS, Vec<Expr>)> {
    let (mut w, mut rest) = (TS::new(), TS::new());
    let mut semi = false;
    for t in m.tokens.clone() {
        if !semi && matches!(&t, proc_macro2::TokenTree::Punct(p) if p.as_char() == ';') {
            semi = true
        } else if semi {
            rest.extend([t])
        } else {
            w.extend([t])
        }
    }
    let (w, t) = if semi { (quote!({ #w }), rest) } else { (quote!(_), w) };
    let v: Vec<Expr> = Punctuated::<Expr, Token![,]>::parse_terminated.parse2(t)?.into_iter().collect();
    if v.is_empty() {
        return err(m, "cat! of nothing");
    }
    Ok((w, v))
}
fn n_str(m: &Macro) -> String {
    last(&m.path).to_string()
}
/// the arguments of `regs!(self, clock, rst, a, ..)`, `clock_reset!` (same), `dff_setup!(self, clock, a, ..)`, `clock!`
struct Setup {
    clock: TS,
    rst: Option<TS>,
    subs: Vec<TS>,
}
impl Setup {
    fn is(m: &Macro) -> bool {
        ["regs", "dff_setup", "clock", "clock_reset"].contains(&n_str(m).as_str())
    }
    fn parse(m: &Macro) -> R<Self> {
        let a = args_of(m)?;
        let with_rst = ["regs", "clock_reset"].contains(&n_str(m).as_str());
        let fixed = if with_rst { 3 } else { 2 };
        if a.len() <= fixed {
            let what = if with_rst { "(self, clock, rst, register, ..)" } else { "(self, clock, register, ..)" };
            return err(m, format!("expected {what}"));
        }
        let me = &a[0];
        let f = |x: &Expr| quote!(#me.#x);
        Ok(Setup { clock: f(&a[1]), rst: with_rst.then(|| f(&a[2])), subs: a[fixed..].iter().map(f).collect() })
    }
    /// the Rust model
    fn sim(m: &Macro) -> R<TS> {
        let Setup { clock, rst, subs } = Self::parse(m)?;
        Ok(match n_str(m).as_str() {
            "regs" => quote!({ #(::hdl::reg::hold::regs(&mut #subs, #clock.val(), #rst.val());)* }),
            "dff_setup" => quote!({ #(::hdl::reg::hold::dffs(&mut #subs, #clock.val());)* }),
            "clock" => quote!({ #(#subs.clock.next = #clock.val();)* }),
            _ => quote!({ #(#subs.clock.next = #clock.val(); #subs.rst.next = #rst.val();)* }),
        })
    }
    fn connect(m: &Macro) -> R<TS> {
        let subs = Self::parse(m)?.subs;
        Ok(match n_str(m).as_str() {
            "regs" => quote!(#(::hdl::reg::hold::regs_connect(&mut #subs);)*),
            "dff_setup" => quote!(#(::hdl::reg::hold::dffs_connect(&mut #subs);)*),
            "clock" => quote!(#(#subs.clock.connect();)*),
            _ => quote!(#(#subs.clock.connect(); #subs.rst.connect();)*),
        })
    }
}
enum P {
    Wild,
    Alts(Vec<Expr>, bool /* integers or constants among them */),
}
fn pattern(p: &Pat) -> R<P> {
    fn go(p: &Pat, v: &mut Vec<Expr>, ints: &mut bool) -> R<()> {
        match p {
            Pat::Or(o) => o.cases.iter().try_for_each(|p| go(p, v, ints)),
            Pat::Paren(p) => go(&p.pat, v, ints),
            Pat::Lit(l) => {
                if let Lit::Int(i) = &l.lit {
                    *ints = true;
                    let t = big_lit(i)?;
                    v.push(parse_quote!(#t))
                } else if let Lit::Bool(_) = &l.lit {
                    v.push(Expr::Lit(l.clone()))
                } else {
                    return err(l, "only integer and bool literals in hardware patterns");
                }
                Ok(())
            }
            Pat::Path(q) => {
                let n = q.path.segments.len();
                if shouty(last(&q.path)) && !(n > 1 && camel(&q.path.segments[n - 2].ident)) {
                    *ints = true
                }
                v.push(Expr::Path(q.clone()));
                Ok(())
            }
            Pat::Ident(i) if i.subpat.is_none() && i.by_ref.is_none() && shouty(&i.ident) => {
                *ints = true;
                let i = &i.ident;
                v.push(parse_quote!(#i));
                Ok(())
            }
            Pat::Ident(i) if camel(&i.ident) => {
                let i = &i.ident;
                v.push(parse_quote!(#i));
                Ok(())
            }
            Pat::Ident(i) => err(i, "a pattern cannot bind a name here: write `_`, or a CONSTANT in capitals"),
            Pat::Wild(w) => err(w, "`_` only on its own"),
            p => err(p, "pattern not supported in hardware: use `_`, integers, CONSTANTS, enum variants and `|`"),
        }
    }
    if let Pat::Wild(_) = p {
        return Ok(P::Wild);
    }
    let (mut v, mut ints) = (vec![], false);
    go(p, &mut v, &mut ints)?;
    Ok(P::Alts(v, ints))
}

// ---------------------------------------------------------------------------------------------- simulation body
/// the few things that plain RustHDL types do not do: compare with u8/u16.. constants, match integers, `+=`, `cat!`
struct Sim;
impl VisitMut for Sim {
    fn visit_expr_mut(&mut self, e: &mut Expr) {
        if let Expr::Binary(b) = e {
            if let Some((x, r, k)) = lit_cmp(b) {
                let mut x = x.clone();
                self.visit_expr_mut(&mut x);
                *e = parse_quote_spanned!(b.op.span()=> ::hdl::rt::cmp_lit(#x, #r, #k));
                return;
            }
        }
        visit_mut::visit_expr_mut(self, e);
        let new: Option<Expr> = match e {
            Expr::Lit(ExprLit { lit: Lit::Int(l), .. }) => big_lit(l).ok().map(|t| parse_quote!(#t)),
            Expr::Binary(b) => {
                if let Some(f) = cmp_fn(&b.op) {
                    let (f, l, r) = (Ident::new(f, b.op.span()), &b.left, &b.right);
                    Some(parse_quote_spanned!(b.op.span()=> ::hdl::rt::#f(#l, #r)))
                } else {
                    op_of_assign(&b.op).map(|o| {
                        let (l, r) = (&b.left, &b.right);
                        parse_quote!(#l = #l #o (#r))
                    })
                }
            }
            Expr::Macro(m) if m.mac.path.is_ident("elab") => {
                let t = &m.mac.tokens;
                Some(parse_quote!({ #t }))
            }
            Expr::Macro(m) if m.mac.path.is_ident("cat") => cat_args(&m.mac).ok().map(|(w, mut a)| {
                a.iter_mut().for_each(|x| self.visit_expr_mut(x));
                let t = a.iter().rev().fold(quote!(()), |acc, x| quote!((#x, #acc)));
                parse_quote_spanned!(m.mac.path.span()=> ::hdl::rt::sim_cat::<#w, _>(#t))
            }),
            Expr::Match(m) => {
                let pats: Vec<_> = m.arms.iter().filter_map(|a| pattern(&a.pat).ok()).collect();
                if pats.iter().any(|p| matches!(p, P::Alts(_, true))) {
                    let s = &m.expr;
                    let mut t = quote!({ ::core::unreachable!() });
                    for (a, p) in m.arms.iter().zip(&pats).rev() {
                        let b = &a.body;
                        t = match p {
                            P::Wild => quote!({ #b }),
                            P::Alts(v, _) => {
                                quote!({ if #(::hdl::rt::eq(__s, #v))||* { #b } else #t })
                            }
                        }
                    }
                    Some(parse_quote!({ let __s = #s; #t }))
                } else {
                    None
                }
            }
            _ => None,
        };
        if let Some(n) = new {
            *e = n
        }
    }
    fn visit_stmt_mut(&mut self, s: &mut Stmt) {
        if let Stmt::Macro(m) = s {
            if m.mac.path.is_ident("comment") {
                *s = parse_quote!({});
                return;
            }
            if Setup::is(&m.mac) {
                if let Ok(t) = Setup::sim(&m.mac) {
                    *s = parse_quote!(#t);
                }
                return;
            }
        }
        visit_mut::visit_stmt_mut(self, s)
    }
}

// ---------------------------------------------------------------------------------------------- connect()
/// marks every signal that the kernel drives, for RustHDL's own check; keeps loops and compile-time lets
#[derive(Default)]
struct Connect {
    dynamic: HashSet<String>,
}
impl Connect {
    fn block(&mut self, b: &Block) -> TS {
        let saved = self.dynamic.clone();
        let v: Vec<_> = b.stmts.iter().map(|s| self.stmt(s)).collect();
        self.dynamic = saved;
        quote!(#(#v)*)
    }
    fn is_dynamic(&self, e: &Expr) -> bool {
        struct V<'a>(&'a HashSet<String>, bool);
        impl<'a, 'ast> Visit<'ast> for V<'a> {
            fn visit_expr(&mut self, e: &'ast Expr) {
                match e {
                    Expr::MethodCall(m) if m.method == "val" => self.1 = true,
                    Expr::If(_) | Expr::Match(_) => self.1 = true,
                    Expr::Macro(m) if m.mac.path.is_ident("elab") => return,
                    Expr::Macro(_) => self.1 = true,
                    Expr::Call(c) if matches!(&*c.func, Expr::Path(p) if !camel(last(&p.path)) && p.path.segments.len() == 1) => {
                        self.1 = true
                    }
                    Expr::Path(p) if p.path.get_ident().is_some_and(|i| self.0.contains(&i.to_string())) => {
                        self.1 = true
                    }
                    _ => {}
                }
                visit::visit_expr(self, e)
            }
        }
        let mut v = V(&self.dynamic, false);
        v.visit_expr(e);
        v.1
    }
    fn stmt(&mut self, s: &Stmt) -> TS {
        match s {
            Stmt::Local(l) => {
                let pat = match &l.pat {
                    Pat::Type(t) => &*t.pat,
                    p => p,
                };
                if let Pat::Tuple(t) = pat {
                    for p in &t.elems {
                        if let Pat::Ident(p) = p {
                            self.dynamic.insert(p.ident.to_string());
                        }
                    }
                }
                if let (Pat::Ident(p), Some(i)) = (pat, &l.init) {
                    if p.mutability.is_none() && !self.is_dynamic(&i.expr) {
                        self.dynamic.remove(&p.ident.to_string());
                        let mut l = l.clone();
                        Sim.visit_local_mut(&mut l);
                        return quote!(#l);
                    }
                    self.dynamic.insert(p.ident.to_string());
                }
                TS::new()
            }
            Stmt::Expr(e, _) => self.expr(e),
            Stmt::Macro(m) if Setup::is(&m.mac) => Setup::connect(&m.mac).unwrap_or_default(),
            Stmt::Item(Item::Const(c)) => quote!(#c),
            _ => TS::new(),
        }
    }
    fn expr(&mut self, e: &Expr) -> TS {
        match e {
            Expr::Assign(a) => {
                let mut l = strip(&a.left);
                while let Expr::Field(f) = l {
                    if member(&f.member).is_some_and(|m| m == "next") {
                        let b = &f.base;
                        return quote!(::rust_hdl::prelude::logic::logic_connect_fn(&mut #b););
                    }
                    l = strip(&f.base)
                }
                TS::new()
            }
            Expr::MethodCall(m) if m.method == "set_bits" => {
                if let Expr::Field(f) = strip(&m.receiver) {
                    let b = &f.base;
                    quote!(::rust_hdl::prelude::logic::logic_connect_fn(&mut #b);)
                } else {
                    TS::new()
                }
            }
            Expr::If(i) => {
                let a = self.block(&i.then_branch);
                let b = i.else_branch.as_ref().map(|e| self.expr(&e.1)).unwrap_or_default();
                quote!({#a} {#b})
            }
            Expr::Match(m) => {
                let v: Vec<_> = m.arms.iter().map(|a| self.expr(&a.body)).collect();
                quote!(#({#v})*)
            }
            Expr::ForLoop(f) => {
                let (p, x, b) = (&f.pat, &f.expr, self.block(&f.body));
                if b.is_empty() {
                    b
                } else {
                    let mut x = x.clone();
                    Sim.visit_expr_mut(&mut x);
                    quote!(for #p in #x { #b })
                }
            }
            Expr::Block(b) => {
                let b = self.block(&b.block);
                quote!({#b})
            }
            Expr::Call(c) if c.args.len() == 2 => {
                if let Expr::Path(p) = &*c.func {
                    let (a, b) = (&c.args[0], &c.args[1]);
                    if last(&p.path) == "link" {
                        quote!(::rust_hdl::prelude::logic::logic_connect_link_fn(#a, #b);)
                    } else if last(&p.path) == "join" {
                        quote!(::rust_hdl::prelude::logic::logic_connect_join_fn(#a, #b);)
                    } else {
                        TS::new()
                    }
                } else {
                    TS::new()
                }
            }
            _ => TS::new(),
        }
    }
}

// ---------------------------------------------------------------------------------------------- hardware body
#[derive(Default)]
struct Hdl {
    depth: usize, /* >0: inside an expression, where signals are not assigned */
    vars: std::collections::HashMap<String, usize>, /* `let mut` -> depth of its declaration */
}
struct Place {
    tokens: TS,
    name: TS,
    first: Option<Ident>,
}
impl Hdl {
    fn block_stmts(&mut self, b: &Block) -> R<TS> {
        let saved = self.vars.clone();
        let v = self.all(b.stmts.iter().map(|s| (s, false)), None);
        self.vars = saved;
        let v = v?;
        Ok(quote!(#(#v)*))
    }
    /// collect all errors of a block instead of stopping at the first
    fn all<'a>(&mut self, it: impl Iterator<Item = (&'a Stmt, bool)>, hint: Option<&str>) -> R<Vec<TS>> {
        let (mut v, mut er): (Vec<TS>, Option<Error>) = (vec![], None);
        for (s, tail) in it {
            match self.stmt(s, tail, hint) {
                Ok(t) => v.push(t),
                Err(e) => match &mut er {
                    None => er = Some(e),
                    Some(x) => x.combine(e),
                },
            }
        }
        match er {
            None => Ok(v),
            Some(e) => Err(e),
        }
    }
    fn block_value(&mut self, b: &Block, hint: Option<&str>) -> R<TS> {
        let n = b.stmts.len();
        if !matches!(b.stmts.last(), Some(Stmt::Expr(_, None)))
            && !matches!(b.stmts.last(), Some(Stmt::Macro(m)) if m.semi_token.is_none())
        {
            return err(b, "this block must end in a value (no `;`)");
        }
        let saved = self.vars.clone();
        self.depth += 1;
        let v = self.all(b.stmts.iter().enumerate().map(|(i, s)| (s, i + 1 == n)), hint);
        self.depth -= 1;
        self.vars = saved;
        let v = v?;
        Ok(quote!({ #(#v)* }))
    }
    fn stmt(&mut self, s: &Stmt, tail: bool, hint: Option<&str>) -> R<TS> {
        match s {
            Stmt::Expr(e, None) if tail => self.value(e, hint),
            Stmt::Macro(m) if tail => self.macro_value(&m.mac),
            Stmt::Expr(e, _) => self.effect(e),
            Stmt::Local(l) => self.local(l),
            Stmt::Item(Item::Const(c)) => Ok(quote!(#c)),
            Stmt::Item(i) => err(i, "items other than `const` are not allowed in a kernel"),
            Stmt::Macro(m) => self.macro_stmt(&m.mac),
        }
    }
    fn local(&mut self, l: &Local) -> R<TS> {
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
            Pat::Ident(p) if p.by_ref.is_none() && p.subpat.is_none() => {
                let (n, s) = (&p.ident, p.ident.to_string());
                let v = self.value(&init.expr, Some(&s))?;
                let sp = init.expr.span();
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
                let arr =
                    matches!(ty, Some(Type::Array(_))) || matches!(strip(&init.expr), Expr::Array(_) | Expr::Repeat(_));
                let bind = if arr { quote!(bind_arr) } else { quote!(bind) };
                Ok(match ty {
                    None | Some(Type::Infer(_)) => {
                        quote_spanned!(sp=> let #n = ::hdl::rt::#bind(#s, #v);)
                    }
                    Some(t) if is_static(t) => quote!(let #n: #t = #v;),
                    Some(t @ Type::Path(_)) => {
                        quote_spanned!(sp=> let #n = ::hdl::rt::bind_as::<#t>(#s, #v);)
                    }
                    Some(t) => {
                        let m = map_ty(t)?;
                        quote_spanned!(sp=> let #n: #m = ::hdl::rt::#bind(#s, #v);)
                    }
                })
            }
            Pat::Tuple(t) => {
                let v = self.value(&init.expr, None)?;
                let mut out = match ty {
                    None => quote!(let __t = #v;),
                    Some(t) => {
                        let m = map_ty(t)?;
                        quote!(let __t: #m = #v;)
                    }
                };
                for (i, p) in t.elems.iter().enumerate() {
                    let i = syn::Index::from(i);
                    match p {
                        Pat::Wild(_) => {}
                        Pat::Ident(p) if p.mutability.is_none() && p.by_ref.is_none() => {
                            let (n, s) = (&p.ident, p.ident.to_string());
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
    fn place(&mut self, e: &Expr) -> R<Option<Place>> {
        Ok(Some(match strip(e) {
            Expr::Path(p) if p.path.is_ident("self") => {
                Place { tokens: quote!(self), name: quote!(::std::string::String::new()), first: None }
            }
            Expr::Field(f) => {
                let Some(b) = self.place(&f.base)? else {
                    return Ok(None);
                };
                let (t, n) = (&b.tokens, &b.name);
                match &f.member {
                    Member::Named(m) => {
                        let s = if b.first.is_some() { format!("${m}") } else { m.to_string() };
                        Place { tokens: quote!(#t.#m), name: quote!(#n + #s), first: b.first.or(Some(m.clone())) }
                    }
                    Member::Unnamed(i) => Place { tokens: quote!(#t.#i), name: quote!(#n), first: b.first },
                }
            }
            Expr::Index(i) => {
                let Some(b) = self.place(&i.expr)? else {
                    return Ok(None);
                };
                let x = self.value(&i.index, None)?;
                let (t, n) = (&b.tokens, &b.name);
                Place { tokens: quote!(#t[#x]), name: quote!(#n + &::std::format!("${}", #x)), first: b.first }
            }
            _ => return Ok(None),
        }))
    }
    /// closure giving the value and the bit offset of a chain of struct fields
    fn field_fn(fields: &[&Ident]) -> TS {
        let mut acc = quote!(__p);
        let mut offs = vec![];
        for f in fields {
            let o = format_ident!("get_my_offset_{}", f);
            offs.push(quote!(#acc.#o()));
            acc = quote!(#acc.#f)
        }
        quote!(|__p| (#acc, #(#offs)+*))
    }
    fn effect(&mut self, e: &Expr) -> R<TS> {
        if self.depth > 0
            && !matches!(
                e,
                Expr::Assign(_) | Expr::Binary(_) | Expr::ForLoop(_) | Expr::If(_) | Expr::Match(_) | Expr::Block(_)
            )
        {
            return err(e, "only `let`, variable assignments and loops are allowed inside an expression");
        }
        match e {
            Expr::Paren(p) => self.effect(&p.expr),
            Expr::Group(p) => self.effect(&p.expr),
            Expr::Assign(a) => {
                let v = self.value(&a.right, None)?;
                self.assign(&a.left, v, a.right.span())
            }
            Expr::Binary(b) if op_of_assign(&b.op).is_some() => {
                let o = op_of_assign(&b.op).unwrap();
                let v = self.value(&b.right, None)?;
                let Expr::Path(p) = strip(&b.left) else {
                    return err(&b.left, "compound assignment only to a `let mut` variable");
                };
                self.assign(&b.left, quote!((#p #o (#v))), b.right.span())
            }
            Expr::If(i) => {
                if let Expr::Let(l) = &*i.cond {
                    return err(l, "`if let` is not supported in a kernel");
                }
                let c = self.value(&i.cond, None)?;
                let t = self.block_stmts(&i.then_branch)?;
                let sp = i.cond.span();
                let f = match &i.else_branch {
                    None => None,
                    Some((_, e)) => Some(match &**e {
                        Expr::Block(b) => self.block_stmts(&b.block)?,
                        e => self.effect(e)?,
                    }),
                };
                let f = f.map(|f| quote!(if __c.els() { #f }));
                let test = quote_spanned!(sp=> ::hdl::rt::test(#c));
                Ok(quote!({ let __c = #test; if __c.then() { #t } #f __c.end(); }))
            }
            Expr::Match(m) => self.match_(m, None, false),
            Expr::ForLoop(f) => {
                if let Some(l) = &f.label {
                    return err(l, "labels are not supported in a kernel");
                }
                let x = self.value(&f.expr, None)?;
                let (p, b) = (&f.pat, self.block_stmts(&f.body)?);
                Ok(quote!(for #p in #x { #b }))
            }
            Expr::Block(b) => {
                let b = self.block_stmts(&b.block)?;
                Ok(quote!({ #b }))
            }
            Expr::Macro(m) => self.macro_stmt(&m.mac),
            Expr::Tuple(t) if t.elems.is_empty() => Ok(TS::new()),
            Expr::MethodCall(m) if m.method == "set_bits" => {
                let Expr::Field(f) = strip(&m.receiver) else {
                    return err(&m.receiver, "write `self.signal.next.set_bits(..)`");
                };
                let (true, Some(p)) = (member(&f.member).is_some_and(|m| m == "next"), self.place(&f.base)?) else {
                    return err(&m.receiver, "write `self.signal.next.set_bits(..)`");
                };
                if m.args.len() != 2 {
                    return err(m, "set_bits takes an offset and a value");
                }
                let (t, n, o, v, tf) = (
                    p.tokens,
                    p.name,
                    self.value(&m.args[0], None)?,
                    self.value(&m.args[1], None)?,
                    match m.turbofish.as_ref().and_then(|t| t.args.first()) {
                        Some(a) => quote!(#a),
                        None => quote!(_),
                    },
                );
                Ok(quote!(::hdl::rt::set_bits::<_, #tf, _>(&#t, #n, #o, #v);))
            }
            Expr::Call(c) => {
                let (Expr::Path(p), 2) = (&*c.func, c.args.len()) else {
                    return err(c, "only `Interface::link(..)` and `Interface::join(..)` can be called as statements");
                };
                let l = last(&p.path);
                if (l != "link" && l != "join") || p.path.segments.len() < 2 {
                    return err(c, "only `Interface::link(..)` and `Interface::join(..)` can be called as statements");
                }
                let mut path = p.path.clone();
                path.segments.last_mut().unwrap().ident = format_ident!("{}_hdl", l, span = l.span());
                let mut n = vec![];
                for a in &c.args {
                    let Expr::Reference(r) = a else {
                        return err(a, "write `&mut self.interface`");
                    };
                    let Some(p) = self.place(&r.expr)? else {
                        return err(a, "write `&mut self.interface`");
                    };
                    n.push(p.name)
                }
                Ok(quote!(::hdl::rt::links(#path("", #(&(#n)),*));))
            }
            Expr::While(_) | Expr::Loop(_) => {
                err(e, "only `for` loops with bounds known at elaboration are supported in a kernel")
            }
            Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) => {
                err(e, "`return`, `break` and `continue` do not exist in hardware: all paths are built; use `if`")
            }
            e => err(
                e,
                "this statement has no hardware meaning: expected an assignment, `let`, `if`, `match`, `for`, `link` or `join`",
            ),
        }
    }
    fn assign(&mut self, left: &Expr, v: TS, sp: Span) -> R<TS> {
        let left = strip(left);
        let (mut fields, mut l) = (vec![], left);
        loop {
            match l {
                Expr::Field(f) if member(&f.member).is_some_and(|m| m == "next") => {
                    if self.depth > 0 {
                        return err(left, "signals cannot be assigned inside an expression");
                    }
                    let Some(p) = self.place(&f.base)? else {
                        return err(left, "only `self...next` can be assigned");
                    };
                    fields.reverse();
                    let (t, n) = (p.tokens, p.name);
                    return Ok(if fields.is_empty() {
                        quote_spanned!(sp=> ::hdl::rt::assign(&#t, #n, #v);)
                    } else {
                        let f = Self::field_fn(&fields);
                        quote_spanned!(sp=> ::hdl::rt::assign_field(&#t, #n, #f, #v);)
                    });
                }
                Expr::Field(f) => {
                    match member(&f.member) {
                        Some(m) if m == "val" => {
                            return err(left, "assign to `.next`, not to `.val`");
                        }
                        Some(m) => fields.push(m),
                        None => return err(left, "tuple fields cannot be assigned"),
                    }
                    l = strip(&f.base)
                }
                Expr::Path(p) if p.path.get_ident().is_some_and(|i| i != "self") => {
                    if self.depth > 0
                        && self.vars.get(&p.path.get_ident().unwrap().to_string()).is_some_and(|d| *d != self.depth)
                    {
                        return err(
                            left,
                            "a variable of an outer block cannot change inside an expression: the order of evaluation would be lost",
                        );
                    }
                    fields.reverse();
                    return Ok(if fields.is_empty() {
                        quote_spanned!(sp=> ::hdl::rt::set(#p, #v);)
                    } else {
                        let f = Self::field_fn(&fields);
                        quote_spanned!(sp=> ::hdl::rt::set_field(#p, #f, #v);)
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
    fn match_(&mut self, m: &ExprMatch, hint: Option<&str>, value: bool) -> R<TS> {
        let s = self.value(&m.expr, None)?;
        let n = m.arms.len();
        let mut out = vec![];
        let (mut ints, mut wild) = (false, false);
        for (i, a) in m.arms.iter().enumerate() {
            if let Some((g, _)) = &a.guard {
                return err(g, "match guards are not supported in a kernel: use `if` inside the arm");
            }
            let p = pattern(&a.pat)?;
            let mut b = if value { self.value(&a.body, hint)? } else { self.effect(&a.body)? };
            if value {
                b = quote!(__j.set(#b);)
            }
            out.push(match p {
                P::Alts(v, k) => {
                    ints |= k;
                    if i + 1 == n && !ints {
                        quote!(__m.default(); #b)
                    } else {
                        quote!(__m.case(&[#(__m.pat(#v)),*]); #b)
                    }
                }
                P::Wild => {
                    wild = true;
                    quote!(__m.default(); #b)
                }
            });
            if wild && i + 1 < n {
                return err(&m.arms[i + 1].pat, "unreachable: `_` comes before this arm");
            }
        }
        if ints && !wild {
            return err(m, "a match on integers needs a last `_ =>` arm");
        }
        let out: Vec<TS> = out.into_iter().map(|b| quote!({ #b })).collect();
        let sp = m.expr.span();
        let h = hint.unwrap_or("match_value");
        let b = quote_spanned!(sp=> ::hdl::rt::match_(#s));
        Ok(if value {
            quote!({ let __j = ::hdl::rt::Join::new(#h); let __m = #b; #(#out)* __m.end(); __j.get() })
        } else {
            quote!({ let __m = #b; #(#out)* __m.end(); })
        })
    }
    fn macro_stmt(&mut self, m: &Macro) -> R<TS> {
        let n = last(&m.path).to_string();
        match n.as_str() {
            "regs" | "dff_setup" | "clock" | "clock_reset" => {
                let s = Setup::parse(m)?;
                let mut pin = |p: &TS| -> R<(TS, TS)> {
                    let p = self.place(&parse_quote!(#p))?.unwrap();
                    Ok((p.tokens, p.name))
                };
                let mut read = |p: &TS| -> R<TS> {
                    let (t, n) = pin(p)?;
                    Ok(quote!(::hdl::rt::read(&#t, #n)))
                };
                let (clock, rst) = (read(&s.clock)?, s.rst.as_ref().map(&mut read).transpose()?);
                let mut out = TS::new();
                for d in &s.subs {
                    let (t, n) = pin(d)?;
                    out.extend(match n_str(m).as_str() {
                        "regs" => quote!(::hdl::reg::hold::regs_hdl(&#t, #n, #clock, #rst);),
                        "dff_setup" => quote!(::hdl::reg::hold::dffs_hdl(&#t, #n, #clock);),
                        _ => {
                            let rst = rst.as_ref().map(|r| quote!(::hdl::rt::assign(&#t.rst, #n + "$rst", #r);));
                            quote!(::hdl::rt::assign(&#t.clock, #n + "$clock", #clock); #rst)
                        }
                    })
                }
                Ok(out)
            }
            "comment" => {
                let t = &m.tokens;
                Ok(quote!(::hdl::rt::comment(#t);))
            }
            _ => err(m, format!("macro `{n}!` is not supported in a kernel")),
        }
    }
    fn macro_value(&mut self, m: &Macro) -> R<TS> {
        if m.path.is_ident("cat") {
            let (w, a) = cat_args(m)?;
            let mut t = quote!(());
            for x in a.iter().rev() {
                let v = self.value(x, None)?;
                t = quote!((#v, #t))
            }
            return Ok(quote_spanned!(m.path.span()=> ::hdl::rt::cat::<#w, _>(#t)));
        }
        if m.path.is_ident("elab") {
            let b: Block = {
                let t = &m.tokens;
                parse_quote!({ #t })
            };
            struct V(Option<Span>);
            impl<'a> Visit<'a> for V {
                fn visit_expr_method_call(&mut self, m: &'a ExprMethodCall) {
                    if m.method == "val" {
                        self.0 = Some(m.span())
                    }
                    visit::visit_expr_method_call(self, m)
                }
                fn visit_member(&mut self, m: &'a Member) {
                    if member(m).is_some_and(|m| m == "next") {
                        self.0 = Some(m.span())
                    }
                }
            }
            let mut v = V(None);
            v.visit_block(&b);
            return match v.0 {
                Some(s) => err_at(s, "elab!() runs when the circuit is built: it cannot read signals"),
                None => Ok(quote!(#b)),
            };
        }
        err(m, format!("macro `{}!` is not supported in a kernel", last(&m.path)))
    }
    fn value(&mut self, e: &Expr, hint: Option<&str>) -> R<TS> {
        let sp = e.span();
        Ok(match e {
            Expr::Paren(p) => {
                let v = self.value(&p.expr, hint)?;
                quote!((#v))
            }
            Expr::Group(p) => self.value(&p.expr, hint)?,
            Expr::Lit(l) => match &l.lit {
                Lit::Int(i) => big_lit(i)?,
                Lit::Bool(_) => quote!(#l),
                _ => return err(l, "only integer and bool literals in a kernel"),
            },
            Expr::Path(p) => {
                if p.path.is_ident("self") {
                    return err(p, "`self` on its own is not a value in a kernel");
                }
                quote!(#p)
            }
            Expr::Const(c) => quote!(#c),
            Expr::Binary(b) => {
                if let Some((x, r, k)) = lit_cmp(b) {
                    let x = self.value(x, None)?;
                    return Ok(quote_spanned!(sp=> ::hdl::rt::cmp_lit(#x, #r, #k)));
                }
                let (l, r, o) = (self.value(&b.left, None)?, self.value(&b.right, None)?, &b.op);
                if let Some(f) = cmp_fn(o) {
                    let f = Ident::new(f, o.span());
                    return Ok(quote_spanned!(sp=> ::hdl::rt::#f(#l, #r)));
                }
                match o {
                    BinOp::And(_) => quote_spanned!(sp=> ::hdl::rt::land(#l, #r)),
                    BinOp::Or(_) => quote_spanned!(sp=> ::hdl::rt::lor(#l, #r)),
                    o if op_of_assign(o).is_some() => {
                        return err(e, "an assignment is not a value");
                    }
                    o => quote!((#l #o #r)),
                }
            }
            Expr::Unary(u) => {
                if let UnOp::Deref(_) = u.op {
                    return err(e, "no references in a kernel");
                }
                let (o, v) = (&u.op, self.value(&u.expr, None)?);
                quote!((#o #v))
            }
            Expr::Cast(c) => {
                let (v, t) = (self.value(&c.expr, None)?, &c.ty);
                quote!((#v as #t))
            }
            Expr::MethodCall(m) => {
                if m.method == "val" {
                    let Some(p) = self.place(&m.receiver)? else {
                        return err(&m.receiver, "`.val()` reads a signal: write `self.signal.val()`");
                    };
                    let (t, n) = (p.tokens, p.name);
                    if !m.args.is_empty() {
                        return err(m, "val() takes no argument");
                    }
                    return Ok(quote_spanned!(sp=> ::hdl::rt::read(&#t, #n)));
                }
                let mut r = self.value(&m.receiver, None)?;
                let (n, tf) = (&m.method, &m.turbofish);
                let a = m.args.iter().map(|x| self.value(x, None)).collect::<R<Vec<_>>>()?;
                if n == "into" {
                    if let Expr::Lit(ExprLit { lit: Lit::Int(l), .. }) = strip(&m.receiver) {
                        if l.suffix().is_empty() {
                            let l = LitInt::new(&format!("{}u64", l.token()), l.span());
                            r = quote!(#l)
                        }
                    }
                    return Ok(quote_spanned!(sp=> ::hdl::rt::into(#r)));
                }
                quote_spanned!(n.span()=> (#r).#n #tf (#(#a),*))
            }
            Expr::Call(c) => {
                let Expr::Path(p) = &*c.func else {
                    return err(&c.func, "only named functions can be called in a kernel");
                };
                let a = c.args.iter().map(|x| self.value(x, None)).collect::<R<Vec<_>>>()?;
                let l = last(&p.path);
                let s = &p.path.segments;
                let tf = &s.last().unwrap().arguments;
                match l.to_string().as_str() {
                    "bit_cast" => {
                        return Ok(quote_spanned!(sp=> ::hdl::rt::bit_cast #tf (#(#a),*)));
                    }
                    "bits" | "clog2" => return Ok(quote!(#p(#(#a),*))),
                    _ => {}
                }
                if s.len() > 1 && camel(&s[s.len() - 2].ident) || camel(l) || p.qself.is_some() {
                    return Ok(quote!(#p(#(#a),*)));
                } // Type::function(..): plain Rust, at elaboration
                let mut path = p.path.clone();
                {
                    let x = path.segments.last_mut().unwrap();
                    x.arguments = PathArguments::None;
                }
                quote_spanned!(l.span()=> #path::hdl #tf (#(#a),*))
            }
            Expr::Macro(m) => self.macro_value(&m.mac)?,
            Expr::Field(f) => {
                let Some(m) = member(&f.member) else {
                    let (b, i) = (self.value(&f.base, None)?, &f.member);
                    return Ok(quote!((#b).#i));
                };
                if let Some(p) = self.place(e)? {
                    if m == "next" || m == "val" {
                        return err(e, "read signals with `.val()`");
                    }
                    if !p.first.as_ref().is_some_and(|f| f.to_string().starts_with('_')) {
                        return err(
                            e,
                            "this is not a value: read a signal with `.val()` (only fields that start with `_` are compile-time data)",
                        );
                    }
                    return Ok(p.tokens);
                }
                if m == "next" {
                    return err(e, "read signals with `.val()`");
                }
                let (mut fields, mut b) = (vec![m], strip(&f.base));
                while let Expr::Field(g) = b {
                    match member(&g.member) {
                        Some(m) => {
                            fields.push(m);
                            b = strip(&g.base)
                        }
                        None => break,
                    }
                }
                fields.reverse();
                let (b, f) = (self.value(b, None)?, Self::field_fn(&fields));
                quote_spanned!(sp=> ::hdl::rt::field(#b, #f))
            }
            Expr::Index(i) => {
                if let Some(p) = self.place(e)? {
                    if !p.first.as_ref().is_some_and(|f| f.to_string().starts_with('_')) {
                        return err(e, "this is not a value: read a signal with `.val()`");
                    }
                    return Ok(p.tokens);
                }
                let (b, x) = (self.value(&i.expr, None)?, self.value(&i.index, None)?);
                quote!((#b)[#x])
            }
            Expr::If(i) => {
                if let Expr::Let(l) = &*i.cond {
                    return err(l, "`if let` is not supported in a kernel");
                }
                let Some((_, els)) = &i.else_branch else {
                    return err(i, "an `if` used as a value needs an `else`");
                };
                let c = self.value(&i.cond, None)?;
                let t = self.block_value(&i.then_branch, hint)?;
                let f = match &**els {
                    Expr::Block(b) => self.block_value(&b.block, hint)?,
                    e => self.value(e, hint)?,
                };
                let h = hint.unwrap_or("if_value");
                let test = quote_spanned!(i.cond.span()=> ::hdl::rt::test(#c));
                quote!({ let __j = ::hdl::rt::Join::new(#h); let __c = #test; if __c.then() { __j.set(#t); } if __c.els() { __j.set(#f); } __c.end(); __j.get() })
            }
            Expr::Match(m) => {
                self.depth += 1;
                let r = self.match_(m, hint, true);
                self.depth -= 1;
                r?
            }
            Expr::Block(b) => self.block_value(&b.block, hint)?,
            Expr::Array(a) => {
                let v = a.elems.iter().map(|x| self.value(x, None)).collect::<R<Vec<_>>>()?;
                quote!(::hdl::rt::bind_arr("elem", [#(#v),*]))
            }
            Expr::Repeat(r) => {
                let (v, n) = (self.value(&r.expr, None)?, &r.len);
                quote!([::hdl::rt::bind("elem", #v); #n])
            }
            Expr::Tuple(t) => {
                let v = t.elems.iter().map(|x| self.value(x, None)).collect::<R<Vec<_>>>()?;
                quote!((#(::hdl::rt::bind("elem", #v),)*))
            }
            Expr::Range(r) => {
                let (a, b) = (
                    r.start.as_ref().map(|x| self.value(x, None)).transpose()?,
                    r.end.as_ref().map(|x| self.value(x, None)).transpose()?,
                );
                let o = &r.limits;
                quote!((#a #o #b))
            }
            Expr::Struct(s) => {
                if let Some(r) = &s.rest {
                    return err(r, "`..base` is not supported: use `let mut x = base; x.field = ..;`");
                }
                let p = &s.path;
                let mut v = vec![];
                for f in &s.fields {
                    let Some(m) = member(&f.member) else {
                        return err(f, "named fields only");
                    };
                    let (x, g) = (self.value(&f.expr, None)?, Self::field_fn(&[m]));
                    v.push(quote!(::hdl::rt::part::<#p, _>(#g, #x)))
                }
                quote!(::hdl::rt::pack::<#p>(::std::vec![#(#v),*]))
            }
            Expr::Closure(_) => {
                return err(e, "closures are not supported in a kernel: use an #[hdl_fn]");
            }
            Expr::Reference(_) => return err(e, "no references in a kernel"),
            Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) => {
                return err(
                    e,
                    "`return`, `break` and `continue` do not exist in hardware: all paths are built; use `if`",
                );
            }
            Expr::Assign(_) => return err(e, "an assignment is not a value"),
            e => return err(e, "this expression is not supported in a kernel"),
        })
    }
}
