//! What several parts of the macros share: errors, types, literals, names, and the arguments of the built-in macros.
use proc_macro2::{Span, TokenStream};
use quote::{ToTokens, quote};
use syn::{parse::Parser, punctuated::Punctuated, *};

/// A result whose error is shown at the offending code.
pub type R<T> = syn::Result<T>;
pub fn err<T>(at: impl ToTokens, message: impl std::fmt::Display) -> R<T> {
    Err(Error::new_spanned(at, message))
}
pub fn err_at<T>(at: Span, message: impl std::fmt::Display) -> R<T> {
    Err(Error::new(at, message))
}
/// The line of the user's file.
pub fn line(at: Span) -> u32 {
    at.unwrap().line() as u32
}

const INTEGERS: [&str; 13] =
    ["u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize", "str"];
/// A type that stays plain Rust in the hardware twin: known while the circuit is built.
pub fn is_static(t: &Type) -> bool {
    matches!(t, Type::Path(p) if p.path.get_ident().is_some_and(|i| INTEGERS.contains(&i.to_string().as_str())))
}
/// The hardware twin of a type: integers stay, arrays and tuples go element by element, the rest is `Ex<T>`.
pub fn hardware_type(t: &Type) -> R<TokenStream> {
    Ok(match t {
        t if is_static(t) => quote!(#t),
        Type::Path(_) => quote!(::hdl::rt::Ex<#t>),
        Type::Array(a) => {
            let (e, n) = (hardware_type(&a.elem)?, &a.len);
            quote!([#e; #n])
        }
        Type::Tuple(x) => {
            let e = x.elems.iter().map(hardware_type).collect::<R<Vec<_>>>()?;
            quote!((#(#e,)*))
        }
        Type::Paren(p) => hardware_type(&p.elem)?,
        Type::Infer(_) => quote!(_),
        _ => {
            return err(
                t,
                "type not supported in a kernel: use Bits<N>, Bit, a LogicState, a LogicStruct, an integer, or an array or tuple of these",
            );
        }
    })
}

/// `Variant`, `Type`: a capital, and small letters.
pub fn is_camel(i: &Ident) -> bool {
    let s = i.to_string();
    s.starts_with(char::is_uppercase) && s.chars().any(char::is_lowercase)
}
/// `CONSTANT`: a capital, and no small letters.
pub fn is_constant(i: &Ident) -> bool {
    let s = i.to_string();
    s.starts_with(char::is_uppercase) && !s.chars().any(char::is_lowercase)
}
/// Without parentheses.
pub fn strip(e: &Expr) -> &Expr {
    match e {
        Expr::Paren(p) => strip(&p.expr),
        Expr::Group(g) => strip(&g.expr),
        e => e,
    }
}
pub fn last(p: &Path) -> &Ident {
    &p.segments.last().unwrap().ident
}
pub fn macro_name(m: &Macro) -> String {
    last(&m.path).to_string()
}
/// The name of a field, unless it is a number.
pub fn member(m: &Member) -> Option<&Ident> {
    match m {
        Member::Named(i) => Some(i),
        _ => None,
    }
}
/// An unsuffixed literal that `i32` cannot hold gets a suffix, so that rustc's integer fallback never bites.
pub fn literal(l: &LitInt) -> R<TokenStream> {
    Ok(if l.suffix().is_empty() && l.base10_parse::<u128>()? > i32::MAX as u128 {
        let v: u128 = l.base10_parse()?;
        let suffix = if v > u64::MAX as u128 { "u128" } else { "u64" };
        let l = LitInt::new(&format!("{}{suffix}", l.token()), l.span());
        quote!(#l)
    } else {
        quote!(#l)
    })
}

/// The function of `hdl::rt` for a comparison.
pub fn comparison(o: &BinOp) -> Option<&'static str> {
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
/// `x < 5` or `5 > x`: the other operand, the relation, and the literal as `u128`.
pub fn literal_comparison(b: &ExprBinary) -> Option<(&Expr, TokenStream, TokenStream)> {
    let int = |e: &Expr| match strip(e) {
        Expr::Lit(ExprLit { lit: Lit::Int(l), .. }) if l.suffix().is_empty() => {
            l.base10_parse::<u128>().ok().map(|v| (v, l.span()))
        }
        _ => None,
    };
    let (other, (k, span), swapped) = match (int(&b.left), int(&b.right)) {
        (None, Some(k)) => (&*b.left, k, false),
        (Some(k), None) => (&*b.right, k, true),
        _ => return None,
    };
    let relation = match (&b.op, swapped) {
        (BinOp::Eq(_), _) => quote!(Eq),
        (BinOp::Ne(_), _) => quote!(Ne),
        (BinOp::Lt(_), false) | (BinOp::Gt(_), true) => quote!(Lt),
        (BinOp::Le(_), false) | (BinOp::Ge(_), true) => quote!(Le),
        (BinOp::Gt(_), false) | (BinOp::Lt(_), true) => quote!(Gt),
        (BinOp::Ge(_), false) | (BinOp::Le(_), true) => quote!(Ge),
        _ => return None,
    };
    let k = LitInt::new(&format!("{k}u128"), span);
    Some((other, quote!(::hdl::rt::Rel::#relation), quote!(#k)))
}
/// `+` of `+=`.
pub fn compound_operator(o: &BinOp) -> Option<TokenStream> {
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

fn comma_separated(t: TokenStream) -> R<Vec<Expr>> {
    Ok(Punctuated::<Expr, Token![,]>::parse_terminated.parse2(t)?.into_iter().collect())
}
/// `cat!(a, b)` or `cat!(W; a, b)`: the width (or `_`), and the parts.
pub fn cat_arguments(m: &Macro) -> R<(TokenStream, Vec<Expr>)> {
    let is_semicolon = |t: &proc_macro2::TokenTree| matches!(t, proc_macro2::TokenTree::Punct(p) if p.as_char() == ';');
    let all: Vec<_> = m.tokens.clone().into_iter().collect();
    let (width, parts) = match all.iter().position(is_semicolon) {
        Some(i) => {
            let w: TokenStream = all[..i].iter().cloned().collect();
            (quote!({ #w }), all[i + 1..].iter().cloned().collect())
        }
        None => (quote!(_), m.tokens.clone()),
    };
    let parts = comma_separated(parts)?;
    if parts.is_empty() {
        return err(m, "cat! of nothing");
    }
    Ok((width, parts))
}

/// The arguments of `regs!(self, clock, rst, a, ..)`, `clock_reset!` (the same), `dff_setup!(self, clock, a, ..)` and
/// `clock!` (the same).
pub struct Setup {
    pub clock: TokenStream,
    pub rst: Option<TokenStream>,
    pub subs: Vec<TokenStream>,
}
impl Setup {
    pub fn is(m: &Macro) -> bool {
        ["regs", "dff_setup", "clock", "clock_reset"].contains(&macro_name(m).as_str())
    }
    pub fn parse(m: &Macro) -> R<Self> {
        let a = comma_separated(m.tokens.clone())?;
        let with_rst = ["regs", "clock_reset"].contains(&macro_name(m).as_str());
        let fixed = if with_rst { 3 } else { 2 };
        if a.len() <= fixed {
            let form = if with_rst { "(self, clock, rst, register, ..)" } else { "(self, clock, register, ..)" };
            return err(m, format!("expected {}!{form}", macro_name(m)));
        }
        let me = &a[0];
        let of_self = |x: &Expr| quote!(#me.#x);
        let rst = with_rst.then(|| of_self(&a[2]));
        Ok(Setup { clock: of_self(&a[1]), rst, subs: a[fixed..].iter().map(of_self).collect() })
    }
}
