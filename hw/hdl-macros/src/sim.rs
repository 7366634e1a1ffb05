//! The Rust model: a kernel's own body, with the few things rewritten that plain RustHDL types do not do (comparison
//! with integer constants, matching integers, `+=`, and our macros).
use crate::common::*;
use crate::pattern::{Pattern, pattern};
use proc_macro2::TokenStream;
use quote::quote;
use syn::{spanned::Spanned, visit_mut::VisitMut, *};

pub struct Sim;
impl Sim {
    fn rewrite(&mut self, e: &Expr) -> Option<Expr> {
        match e {
            Expr::Lit(ExprLit { lit: Lit::Int(l), .. }) => literal(l).ok().map(|t| parse_quote!(#t)),
            Expr::Binary(b) => {
                let (l, r) = (&b.left, &b.right);
                if let Some(f) = comparison(&b.op) {
                    let f = Ident::new(f, b.op.span());
                    return Some(parse_quote_spanned!(b.op.span()=> ::hdl::rt::#f(#l, #r)));
                }
                compound_operator(&b.op).map(|o| parse_quote!(#l = #l #o (#r)))
            }
            Expr::Macro(m) if m.mac.path.is_ident("elab") => {
                let t = &m.mac.tokens;
                Some(parse_quote!({ #t }))
            }
            Expr::Macro(m) if m.mac.path.is_ident("cat") => {
                let (w, mut parts) = cat_arguments(&m.mac).ok()?;
                parts.iter_mut().for_each(|x| self.visit_expr_mut(x));
                let list = parts.iter().rev().fold(quote!(()), |rest, x| quote!((#x, #rest)));
                Some(parse_quote_spanned!(m.mac.path.span()=> ::hdl::rt::sim_cat::<#w, _>(#list)))
            }
            Expr::Match(m) => integer_match(m),
            _ => None,
        }
    }
}
impl VisitMut for Sim {
    fn visit_expr_mut(&mut self, e: &mut Expr) {
        if let Expr::Binary(b) = e
            && let Some((x, r, k)) = literal_comparison(b)
        {
            let mut x = x.clone();
            self.visit_expr_mut(&mut x);
            *e = parse_quote_spanned!(b.op.span()=> ::hdl::rt::compare_literal(#x, #r, #k));
            return;
        }
        visit_mut::visit_expr_mut(self, e);
        if let Some(new) = self.rewrite(e) {
            *e = new
        }
    }
    fn visit_stmt_mut(&mut self, s: &mut Stmt) {
        if let Stmt::Macro(m) = s {
            if m.mac.path.is_ident("comment") {
                *s = parse_quote!({});
                return;
            }
            if Setup::is(&m.mac) {
                if let Ok(t) = setup(&m.mac) {
                    *s = parse_quote!(#t);
                }
                return;
            }
        }
        visit_mut::visit_stmt_mut(self, s)
    }
}
/// A match with integers or constants, as a chain of `if`s; rustc takes the others as they are.
fn integer_match(m: &ExprMatch) -> Option<Expr> {
    let patterns: Vec<_> = m.arms.iter().filter_map(|a| pattern(&a.pat).ok()).collect();
    if !patterns.iter().any(|p| matches!(p, Pattern::Alternatives { integers: true, .. })) {
        return None;
    }
    let s = &m.expr;
    let mut chain = quote!({ ::core::unreachable!() });
    for (arm, p) in m.arms.iter().zip(&patterns).rev() {
        let b = &arm.body;
        chain = match p {
            Pattern::Wild => quote!({ #b }),
            Pattern::Alternatives { values, .. } => {
                quote!({ if #(::hdl::rt::eq(__s, #values))||* { #b } else #chain })
            }
        }
    }
    Some(parse_quote!({ let __s = #s; #chain }))
}
fn setup(m: &Macro) -> R<TokenStream> {
    let Setup { clock, rst, subs } = Setup::parse(m)?;
    Ok(match macro_name(m).as_str() {
        "regs" => quote!({ #(::hdl::rt::regs(&mut #subs, #clock.val(), #rst.val());)* }),
        "dff_setup" => quote!({ #(::hdl::rt::dffs(&mut #subs, #clock.val());)* }),
        "clock" => quote!({ #(#subs.clock.next = #clock.val();)* }),
        _ => quote!({ #(#subs.clock.next = #clock.val(); #subs.rst.next = #rst.val();)* }),
    })
}
