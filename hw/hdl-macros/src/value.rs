//! The hardware twin of expressions: the same expression over `Ex<T>`, with calls of `hdl::rt` where Rust's own operators
//! or control flow cannot be overloaded.
use crate::common::*;
use crate::hardware::Hardware;
use crate::place::{Place, field_of};
use crate::statement::no_jumps;
use proc_macro2::{Span, TokenStream};
use quote::{quote, quote_spanned};
use syn::{
    spanned::Spanned,
    visit::{self, Visit},
    *,
};

impl Hardware {
    /// `hint` is a name for the value, if it needs one.
    pub fn value(&mut self, e: &Expr, hint: Option<&str>) -> R<TokenStream> {
        let sp = e.span();
        Ok(match e {
            Expr::Paren(p) => {
                let v = self.value(&p.expr, hint)?;
                quote!((#v))
            }
            Expr::Group(p) => self.value(&p.expr, hint)?,
            Expr::Lit(l) => match &l.lit {
                Lit::Int(i) => literal(i)?,
                Lit::Bool(_) => quote!(#l),
                _ => return err(l, "only integer and bool literals in a kernel"),
            },
            Expr::Path(p) if p.path.is_ident("self") => return err(p, "`self` on its own is not a value in a kernel"),
            Expr::Path(p) => quote!(#p),
            Expr::Const(c) => quote!(#c),
            Expr::Binary(b) => self.binary(b)?,
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
            Expr::MethodCall(m) => self.method(m)?,
            Expr::Call(c) => self.call(c)?,
            Expr::Macro(m) => self.macro_value(&m.mac)?,
            Expr::Field(f) => self.field(e, f)?,
            Expr::Index(i) => {
                if let Some(p) = Place::parse(self, e)? {
                    if !p.is_data() {
                        return err(e, "this is not a value: read a signal with `.val()`");
                    }
                    return Ok(p.tokens());
                }
                let (b, x) = (self.value(&i.expr, None)?, self.value(&i.index, None)?);
                quote_spanned!(sp=> ::hdl::rt::index(#b, #x))
            }
            Expr::If(i) => self.if_value(i, hint)?,
            Expr::Match(m) => self.inside(|h| h.match_(m, hint, true))?,
            Expr::Block(b) => self.block_value(&b.block, hint)?,
            Expr::Array(a) => {
                let v = a.elems.iter().map(|x| self.value(x, None)).collect::<R<Vec<_>>>()?;
                quote!(::hdl::rt::bind_array("element", [#(#v),*]))
            }
            Expr::Repeat(r) => {
                let (v, n) = (self.value(&r.expr, None)?, &r.len);
                quote!([::hdl::rt::bind("element", #v); #n])
            }
            Expr::Tuple(t) => {
                let v = t.elems.iter().map(|x| self.value(x, None)).collect::<R<Vec<_>>>()?;
                quote!((#(::hdl::rt::bind("element", #v),)*))
            }
            Expr::Range(r) => {
                let (a, b) = (
                    r.start.as_ref().map(|x| self.value(x, None)).transpose()?,
                    r.end.as_ref().map(|x| self.value(x, None)).transpose()?,
                );
                let o = &r.limits;
                quote!((#a #o #b))
            }
            Expr::Struct(s) => self.structure(s)?,
            Expr::Closure(_) => return err(e, "closures are not supported in a kernel: use an #[hdl_fn]"),
            Expr::Reference(_) => return err(e, "no references in a kernel"),
            Expr::Return(_) | Expr::Break(_) | Expr::Continue(_) => return no_jumps(e),
            Expr::Assign(_) => return err(e, "an assignment is not a value"),
            e => return err(e, "this expression is not supported in a kernel"),
        })
    }
    fn binary(&mut self, b: &ExprBinary) -> R<TokenStream> {
        let sp = b.span();
        if let Some((x, r, k)) = literal_comparison(b) {
            let x = self.value(x, None)?;
            return Ok(quote_spanned!(sp=> ::hdl::rt::compare_literal(#x, #r, #k)));
        }
        let (l, r, o) = (self.value(&b.left, None)?, self.value(&b.right, None)?, &b.op);
        if let Some(f) = comparison(o) {
            let f = Ident::new(f, o.span());
            return Ok(quote_spanned!(sp=> ::hdl::rt::#f(#l, #r)));
        }
        Ok(match o {
            BinOp::And(_) => quote_spanned!(sp=> ::hdl::rt::and(#l, #r)),
            BinOp::Or(_) => quote_spanned!(sp=> ::hdl::rt::or(#l, #r)),
            o if compound_operator(o).is_some() => return err(b, "an assignment is not a value"),
            o => quote!((#l #o #r)),
        })
    }
    fn method(&mut self, m: &ExprMethodCall) -> R<TokenStream> {
        let sp = m.span();
        if m.method == "val" {
            let Some(p) = Place::parse(self, &m.receiver)? else {
                return err(&m.receiver, "`.val()` reads a signal: write `self.signal.val()`");
            };
            if !m.args.is_empty() {
                return err(m, "val() takes no argument");
            }
            return Ok(p.read());
        }
        let mut receiver = self.value(&m.receiver, None)?;
        let (n, turbofish) = (&m.method, &m.turbofish);
        let arguments = m.args.iter().map(|x| self.value(x, None)).collect::<R<Vec<_>>>()?;
        if n == "into" {
            // the literal's type must be known before the target's
            if let Expr::Lit(ExprLit { lit: Lit::Int(l), .. }) = strip(&m.receiver)
                && l.suffix().is_empty()
            {
                let l = LitInt::new(&format!("{}u64", l.token()), l.span());
                receiver = quote!(#l)
            }
            return Ok(quote_spanned!(sp=> ::hdl::rt::into(#receiver)));
        }
        Ok(quote_spanned!(n.span()=> (#receiver).#n #turbofish (#(#arguments),*)))
    }
    fn call(&mut self, c: &ExprCall) -> R<TokenStream> {
        let Expr::Path(p) = &*c.func else {
            return err(&c.func, "only named functions can be called in a kernel");
        };
        let arguments = c.args.iter().map(|x| self.value(x, None)).collect::<R<Vec<_>>>()?;
        let l = last(&p.path);
        let s = &p.path.segments;
        let turbofish = &s.last().unwrap().arguments;
        match l.to_string().as_str() {
            "bit_cast" => return Ok(quote_spanned!(c.span()=> ::hdl::rt::bit_cast #turbofish (#(#arguments),*))),
            "bits" | "clog2" => return Ok(quote!(#p(#(#arguments),*))),
            _ => {}
        }
        // `Type::function(..)` is plain Rust, run while the circuit is built
        if s.len() > 1 && is_camel(&s[s.len() - 2].ident) || is_camel(l) || p.qself.is_some() {
            return Ok(quote!(#p(#(#arguments),*)));
        }
        let mut path = p.path.clone();
        path.segments.last_mut().unwrap().arguments = PathArguments::None;
        Ok(quote_spanned!(l.span()=> #path::hdl #turbofish (#(#arguments),*)))
    }
    fn field(&mut self, e: &Expr, f: &ExprField) -> R<TokenStream> {
        let Some(m) = member(&f.member) else {
            if let Some(p) = Place::parse(self, e)? {
                return match p.is_data() {
                    true => Ok(p.tokens()),
                    false => err(e, "this is not a value: read a signal with `.val()`"),
                };
            }
            let (b, i) = (self.value(&f.base, None)?, &f.member);
            return Ok(quote!((#b).#i));
        };
        if let Some(p) = Place::parse(self, e)? {
            if p.is_data() {
                return Ok(p.tokens());
            }
            if m == "next" || m == "val" {
                return err(e, "read signals with `.val()`");
            }
            return err(
                e,
                "this is not a value: read a signal with `.val()` (only fields that start with `_` are compile-time data)",
            );
        }
        if m == "next" {
            return err(e, "read signals with `.val()`");
        }
        let (mut fields, mut base) = (vec![m], strip(&f.base));
        while let Expr::Field(g) = base {
            let Some(m) = member(&g.member) else { break };
            fields.push(m);
            base = strip(&g.base)
        }
        fields.reverse();
        let (base, of) = (self.value(base, None)?, field_of(&fields));
        Ok(quote_spanned!(e.span()=> ::hdl::rt::field(#base, #of)))
    }
    fn if_value(&mut self, i: &ExprIf, hint: Option<&str>) -> R<TokenStream> {
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
        let hint = hint.unwrap_or("if_value");
        let test = quote_spanned!(i.cond.span()=> ::hdl::rt::test(#c));
        Ok(quote!({
            let __j = ::hdl::rt::Join::new(#hint);
            let __c = #test;
            if __c.then() { __j.set(#t); }
            if __c.els() { __j.set(#f); }
            __c.end();
            __j.get()
        }))
    }
    fn structure(&mut self, s: &ExprStruct) -> R<TokenStream> {
        if let Some(r) = &s.rest {
            return err(r, "`..base` is not supported: use `let mut x = base; x.field = ..;`");
        }
        let p = &s.path;
        let mut fields = vec![];
        for f in &s.fields {
            let Some(m) = member(&f.member) else {
                return err(f, "named fields only");
            };
            let (x, of) = (self.value(&f.expr, None)?, field_of(&[m]));
            fields.push(quote!(::hdl::rt::part::<#p, _>(#of, #x)))
        }
        Ok(quote!(::hdl::rt::structure::<#p>(::std::vec![#(#fields),*])))
    }
    pub fn macro_value(&mut self, m: &Macro) -> R<TokenStream> {
        if m.path.is_ident("cat") {
            let (w, parts) = cat_arguments(m)?;
            let mut list = quote!(());
            for x in parts.iter().rev() {
                let v = self.value(x, None)?;
                list = quote!((#v, #list))
            }
            return Ok(quote_spanned!(m.path.span()=> ::hdl::rt::cat::<#w, _>(#list)));
        }
        if m.path.is_ident("elab") {
            let t = &m.tokens;
            let b: Block = parse_quote!({ #t });
            let mut signals = Signals(None);
            signals.visit_block(&b);
            return match signals.0 {
                Some(s) => err_at(s, "elab!() runs when the circuit is built: it cannot read signals"),
                None => Ok(quote!(#b)),
            };
        }
        err(m, format!("macro `{}!` is not supported in a kernel", macro_name(m)))
    }
}

/// Finds an access to a signal.
struct Signals(Option<Span>);
impl<'a> Visit<'a> for Signals {
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
