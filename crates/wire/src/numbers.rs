//! Makes a newtype over a kernel number with names for the known values. Unknown values are kept as they are.

macro_rules! numbers {
    ($(#[$meta:meta])* $name:ident($inner:ty) { $($(#[$doc:meta])* $constant:ident = $value:expr,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub $inner);

        impl $name {
            $($(#[$doc])* pub const $constant: Self = Self($value);)*
        }

        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                let name = match *self {
                    $(Self::$constant => stringify!($constant),)*
                    Self(other) => return write!(f, "{}({other:#x})", stringify!($name)),
                };
                f.write_str(name)
            }
        }
    };
}
