//! Patterns of `match`: constants only, with CAPITALS for constants and CamelCase for enum variants, because a macro
//! cannot ask rustc what a name is.
use crate::common::*;
use syn::*;

pub enum Pattern {
    Wild,
    Alternatives {
        values: Vec<Expr>,
        /// There are integers or constants among them, so that rustc cannot match them on `Bits`.
        integers: bool,
    },
}

pub fn pattern(p: &Pat) -> R<Pattern> {
    if let Pat::Wild(_) = p {
        return Ok(Pattern::Wild);
    }
    let (mut values, mut integers) = (vec![], false);
    alternatives(p, &mut values, &mut integers)?;
    Ok(Pattern::Alternatives { values, integers })
}
fn alternatives(p: &Pat, values: &mut Vec<Expr>, integers: &mut bool) -> R<()> {
    match p {
        Pat::Or(o) => o.cases.iter().try_for_each(|p| alternatives(p, values, integers)),
        Pat::Paren(p) => alternatives(&p.pat, values, integers),
        Pat::Lit(l) => {
            match &l.lit {
                Lit::Int(i) => {
                    *integers = true;
                    let t = literal(i)?;
                    values.push(parse_quote!(#t))
                }
                Lit::Bool(_) => values.push(Expr::Lit(l.clone())),
                _ => return err(l, "only integer and bool literals in hardware patterns"),
            }
            Ok(())
        }
        Pat::Path(q) => {
            let n = q.path.segments.len();
            let of_type = n > 1 && is_camel(&q.path.segments[n - 2].ident);
            *integers |= is_constant(last(&q.path)) && !of_type;
            values.push(Expr::Path(q.clone()));
            Ok(())
        }
        Pat::Ident(i) if i.subpat.is_none() && i.by_ref.is_none() && (is_constant(&i.ident) || is_camel(&i.ident)) => {
            *integers |= is_constant(&i.ident);
            let i = &i.ident;
            values.push(parse_quote!(#i));
            Ok(())
        }
        Pat::Ident(i) => err(i, "a pattern cannot bind a name here: write `_`, or a CONSTANT in capitals"),
        Pat::Wild(w) => err(w, "`_` only on its own"),
        p => err(p, "pattern not supported in hardware: use `_`, integers, CONSTANTS, enum variants and `|`"),
    }
}
