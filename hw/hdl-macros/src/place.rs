//! `self.a[i].b`: places in the block, and how the hardware twin reaches them. A signal is known by its RustHDL name
//! (`a$0$b`) and, for its type, by a reference to the field. With a run-time index there are several signals:
//! `hdl::rt::read_at` and `write_at` call a closure for each element.
use crate::common::*;
use crate::hardware::Hardware;
use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::*;

enum Step {
    Field(Member),
    Index(TokenStream),
}
pub struct Place(Vec<Step>);
impl Place {
    /// The place that an expression names, if it starts at `self`.
    pub fn parse(h: &mut Hardware, e: &Expr) -> R<Option<Place>> {
        Ok(Some(match strip(e) {
            Expr::Path(p) if p.path.is_ident("self") => Place(vec![]),
            Expr::Field(f) => match Self::parse(h, &f.base)? {
                Some(mut p) => {
                    p.0.push(Step::Field(f.member.clone()));
                    p
                }
                None => return Ok(None),
            },
            Expr::Index(i) => match Self::parse(h, &i.expr)? {
                Some(mut p) => {
                    p.0.push(Step::Index(h.value(&i.index, None)?));
                    p
                }
                None => return Ok(None),
            },
            _ => return Ok(None),
        }))
    }
    /// Starts at a `_field`: data of the block, known while the circuit is built.
    pub fn is_data(&self) -> bool {
        matches!(self.0.first(), Some(Step::Field(Member::Named(f))) if f.to_string().starts_with('_'))
    }
    /// As plain Rust.
    pub fn tokens(&self) -> TokenStream {
        self.0.iter().fold(quote!(self), |t, s| match s {
            Step::Field(m) => quote!(#t.#m),
            Step::Index(i) => quote!(#t[#i]),
        })
    }
    /// The name of the signal, as a Rust expression of type `String`; indices must be integers.
    pub fn name(&self) -> TokenStream {
        let start = quote!(::std::string::String::new());
        let (mut t, mut first) = (start, true);
        for s in &self.0 {
            match s {
                Step::Field(Member::Unnamed(_)) => continue,
                Step::Field(Member::Named(m)) => {
                    let m = if first { m.to_string() } else { format!("${m}") };
                    t = quote!(#t + #m)
                }
                Step::Index(i) => t = quote!(#t + &::std::format!("${}", #i)),
            }
            first = false
        }
        t
    }
    /// A read of the signal.
    pub fn read(&self) -> TokenStream {
        let leaf = |place: TokenStream, name: TokenStream| quote!(::hdl::rt::read(&#place, #name));
        reach(&self.0, quote!(self), None, &quote!(read_at), &leaf)
    }
    /// An assignment to the signal; `leaf` makes it from the place and the name of one signal.
    pub fn write(&self, leaf: &dyn Fn(TokenStream, TokenStream) -> TokenStream) -> TokenStream {
        reach(&self.0, quote!(self), None, &quote!(write_at), leaf)
    }
}
fn reach(
    steps: &[Step],
    mut place: TokenStream,
    mut name: Option<TokenStream>,
    at: &TokenStream,
    leaf: &dyn Fn(TokenStream, TokenStream) -> TokenStream,
) -> TokenStream {
    for (k, s) in steps.iter().enumerate() {
        match s {
            Step::Field(m) => {
                if let Member::Named(m) = m {
                    name = Some(match name {
                        None => {
                            let m = m.to_string();
                            quote!(::std::string::String::from(#m))
                        }
                        Some(n) => {
                            let m = format!("${m}");
                            quote!(#n + #m)
                        }
                    })
                }
                place = quote!(#place.#m)
            }
            Step::Index(i) => {
                let inner = reach(&steps[k + 1..], quote!((*__e)), Some(quote!(__n)), at, leaf);
                let name = name.to_token_stream();
                return quote!(::hdl::rt::#at(&#place[..], #i, #name, |__e, __n| { #inner }));
            }
        }
    }
    let name = name.to_token_stream();
    leaf(place, name)
}

/// For a chain of struct fields: a closure that gives, for a struct, the value of the field and its offset in bits.
pub fn field_of(fields: &[&Ident]) -> TokenStream {
    let mut value = quote!(__p);
    let mut offsets = vec![];
    for f in fields {
        let offset = quote::format_ident!("get_my_offset_{}", f);
        offsets.push(quote!(#value.#offset()));
        value = quote!(#value.#f)
    }
    quote!(|__p| (#value, #(#offsets)+*))
}
