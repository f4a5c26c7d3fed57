//! Quantities (apimachinery `resource.Quantity`): numbers with a suffix of magnitude. Texts in, their canonical form out:
//! no fraction, and the largest suffix without loss. The kind of suffix stays: `1024Ki` is `1Mi`, and `0.1` is `100m`.
//!
//! Digits are kept as text, so that no length overflows.

/// The exponent of the smallest amount, `1n`. Smaller parts are rounded up.
const SMALLEST: i64 = -9;
/// Most digits of a number that upstream keeps as it was written (`maxInt64Factors`).
const MOST_KEPT: usize = 18;
const DECIMAL: [(&str, i64); 10] =
    [("n", -9), ("u", -6), ("m", -3), ("", 0), ("k", 3), ("M", 6), ("G", 9), ("T", 12), ("P", 15), ("E", 18)];
const BINARY: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// How the magnitude is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Suffix {
    /// A power of ten from [`DECIMAL`].
    Decimal(i64),
    /// A power of ten as `e3`.
    Exponent(i64),
    /// A power of 1024: the index in [`BINARY`].
    Binary(usize),
}

/// A text in its parts.
#[derive(Debug, Clone, Copy)]
struct Parts<'a> {
    is_negative: bool,
    /// Digits before the point, without leading zeros.
    whole: &'a str,
    fraction: &'a str,
    suffix: Suffix,
}

/// An amount: `digits` times ten to the power of `exponent`. Zero has no digits.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Amount {
    /// The values of the digits, the highest first. The first is not 0.
    digits: Vec<u8>,
    exponent: i64,
}

/// Returns the form in which the quantity is stored; `None` if the text is not a quantity.
pub(crate) fn canonical(text: &str) -> Option<String> {
    let parts = Parts::of(text)?;
    if parts.is_kept() {
        return Some(text.to_owned());
    }
    let amount = Amount::of(parts);
    let unsigned = match parts.suffix {
        Suffix::Binary(_) => amount.capped().binary(),
        Suffix::Decimal(_) => amount.decimal(),
        Suffix::Exponent(_) => amount.exponential(),
    };
    Some(if parts.is_negative && unsigned != "0" { format!("-{unsigned}") } else { unsigned })
}

/// Returns true if the text is a quantity without a fraction, such as a number of pods. Parts smaller than a thousandth
/// are rounded up to a thousandth.
pub fn is_whole(text: &str) -> bool {
    Parts::of(text).is_some_and(|parts| Amount::of(parts).is_whole())
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Option<Self> {
        let unsigned = text.strip_prefix(['+', '-']).unwrap_or(text);
        let end = unsigned.find(|it: char| !it.is_ascii_digit() && it != '.').unwrap_or(unsigned.len());
        let (number, suffix) = unsigned.split_at_checked(end)?;
        let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
        if fraction.contains('.') || (whole.is_empty() && fraction.is_empty()) {
            return None;
        }
        let suffix = suffix_of(suffix)?;
        Some(Self {
            is_negative: text.starts_with('-'),
            whole: whole.trim_start_matches('0'),
            fraction,
            suffix,
        })
    }

    /// Returns true if upstream keeps the text as it is: it is taken for canonical.
    fn is_kept(self) -> bool {
        let count = self.whole.len().saturating_add(self.fraction.len());
        let shift = i64::try_from(self.fraction.len()).unwrap_or(i64::MAX);
        match self.suffix {
            Suffix::Decimal(exponent) | Suffix::Exponent(exponent) => {
                let scale = exponent.saturating_sub(shift);
                let ends_in_thousands =
                    self.whole.bytes().chain(self.fraction.bytes()).rev().take(3).eq(*b"000");
                count <= MOST_KEPT
                    && scale >= SMALLEST
                    && scale % 3 == 0
                    && !ends_in_thousands
                    && !self.whole.is_empty()
            }
            // What upstream keeps of these is written in the same way again.
            Suffix::Binary(_) => false,
        }
    }
}

fn suffix_of(text: &str) -> Option<Suffix> {
    if let Some((_, exponent)) = DECIMAL.iter().find(|(suffix, _)| *suffix == text) {
        return Some(Suffix::Decimal(*exponent));
    }
    if let Some(power) = BINARY.iter().position(|suffix| *suffix == text) {
        return Some(Suffix::Binary(power));
    }
    let exponent = text.strip_prefix(['e', 'E'])?;
    let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    let exponent: i32 = is_number.then(|| exponent.parse().ok())??;
    Some(Suffix::Exponent(exponent.into()))
}

impl Amount {
    fn of(parts: Parts<'_>) -> Self {
        let shift = i64::try_from(parts.fraction.len()).unwrap_or(i64::MAX);
        let (power, times) = match parts.suffix {
            Suffix::Decimal(exponent) | Suffix::Exponent(exponent) => (exponent, 0),
            Suffix::Binary(times) => (0, times),
        };
        let digits = parts.whole.bytes().chain(parts.fraction.bytes()).map(|byte| byte.wrapping_sub(b'0'));
        let digits = digits.skip_while(|digit| *digit == 0).collect();
        let mut amount = Self { digits, exponent: power.saturating_sub(shift) };
        for _ in 0..times {
            amount.multiply_by_1024();
        }
        amount.round_up();
        amount.drop_zeros();
        amount
    }

    fn multiply_by_1024(&mut self) {
        let mut carry = 0_u32;
        for digit in self.digits.iter_mut().rev() {
            let product = u32::from(*digit) * 1024 + carry;
            *digit = low_digit(product);
            carry = product / 10;
        }
        let mut high = Vec::new();
        while carry > 0 {
            high.push(low_digit(carry));
            carry /= 10;
        }
        high.reverse();
        self.digits.splice(0..0, high);
    }

    /// Rounds away from zero to [`SMALLEST`].
    fn round_up(&mut self) {
        let excess = usize::try_from(SMALLEST.saturating_sub(self.exponent)).unwrap_or(0);
        if excess == 0 || self.digits.is_empty() {
            return;
        }
        let rest = self.digits.split_off(self.digits.len().saturating_sub(excess));
        self.exponent = SMALLEST;
        if rest.iter().any(|digit| *digit != 0) {
            self.increment();
        }
    }

    fn increment(&mut self) {
        for digit in self.digits.iter_mut().rev() {
            if *digit < 9 {
                *digit += 1;
                return;
            }
            *digit = 0;
        }
        self.digits.insert(0, 1);
    }

    /// Moves zeros at the end to the exponent.
    fn drop_zeros(&mut self) {
        while self.digits.last() == Some(&0) {
            self.digits.pop();
            self.exponent = self.exponent.saturating_add(1);
        }
    }

    fn is_whole(&self) -> bool {
        self.digits.is_empty() || self.exponent >= 0
    }

    /// Returns the amount as an integer; `None` if it has a fraction or more than 64 bits.
    fn integer(&self) -> Option<u64> {
        if self.digits.is_empty() {
            return Some(0);
        }
        let factor = 10_u64.checked_pow(u32::try_from(self.exponent).ok()?)?;
        let digits = self
            .digits
            .iter()
            .try_fold(0_u64, |sum, digit| sum.checked_mul(10)?.checked_add(u64::from(*digit)));
        digits?.checked_mul(factor)
    }

    /// Caps the amount at the largest 64-bit integer, as upstream does for binary suffixes.
    fn capped(self) -> Self {
        let length = i64::try_from(self.digits.len()).unwrap_or(i64::MAX).saturating_add(self.exponent);
        let is_above = self.integer().map_or(length > 19, |integer| integer > i64::MAX.unsigned_abs());
        if !is_above {
            return self;
        }
        let digits = i64::MAX.to_string().bytes().map(|byte| byte.wrapping_sub(b'0')).collect();
        Self { digits, exponent: 0 }
    }

    fn binary(self) -> String {
        let Some(mut integer) = self.integer().filter(|integer| *integer >= 1024) else {
            return self.decimal();
        };
        let mut suffixes = BINARY.iter();
        let mut suffix = suffixes.next();
        while integer % 1024 == 0 {
            let Some(next) = suffixes.next() else { break };
            suffix = Some(next);
            integer /= 1024;
        }
        format!("{integer}{}", suffix.copied().unwrap_or_default())
    }

    fn decimal(self) -> String {
        let highest = DECIMAL.last().map_or(0, |(_, exponent)| *exponent);
        let (digits, exponent) = self.aligned(highest);
        let suffix = DECIMAL.iter().find(|(_, power)| *power == exponent).map_or("", |(suffix, _)| *suffix);
        format!("{digits}{suffix}")
    }

    fn exponential(self) -> String {
        match self.aligned(i64::MAX) {
            (digits, 0) => digits,
            (digits, exponent) => format!("{digits}e{exponent}"),
        }
    }

    /// Returns the digits for an exponent that is a multiple of three and at most `highest`.
    fn aligned(self, highest: i64) -> (String, i64) {
        if self.digits.is_empty() {
            return ("0".to_owned(), 0);
        }
        let exponent = self.exponent.saturating_sub(self.exponent.rem_euclid(3)).min(highest);
        let zeros = usize::try_from(self.exponent.saturating_sub(exponent)).unwrap_or(0);
        let digits = self.digits.iter().map(|digit| char::from(b'0'.saturating_add(*digit)));
        (digits.chain(std::iter::repeat_n('0', zeros)).collect(), exponent)
    }
}

fn low_digit(number: u32) -> u8 {
    u8::try_from(number % 10).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn each_form() {
        for (text, form) in [
            ("0", "0"),
            ("0.0", "0"),
            ("-0", "0"),
            ("00", "0"),
            ("0Ki", "0"),
            ("4", "4"),
            ("0.1", "100m"),
            (".5", "500m"),
            ("1.5", "1500m"),
            ("-1.5", "-1500m"),
            ("1000m", "1"),
            ("1500m", "1500m"),
            ("2000", "2k"),
            ("100000", "100k"),
            ("16384000", "16384k"),
            ("1.500", "1.500"),
            ("0.1m", "100u"),
            ("0.0000000001", "1n"),
            ("1.0000000001", "1000000001n"),
            ("1e3", "1e3"),
            ("1000e3", "1e6"),
            ("12e5", "1200e3"),
            ("1.5e3", "1500"),
            ("1e-1", "100e-3"),
            ("1e0", "1e0"),
            ("4Gi", "4Gi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Gi", "512Mi"),
            ("1024Ki", "1Mi"),
            ("1025Ki", "1025Ki"),
            ("1048576Ki", "1Gi"),
            ("0.5Ki", "512"),
            ("62.5Ki", "64000"),
            ("64000", "64k"),
            ("1.1Ki", "1126400m"),
            ("16Ei", "9223372036854775807"),
            ("99999999999999999999999Ki", "9223372036854775807"),
            ("1000E", "1000E"),
            ("1e40", "10e39"),
            ("123456789012345678901234567890", "123456789012345678901234567890"),
        ] {
            assert_eq!(canonical(text).as_deref(), Some(form), "{text}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "+",
            ".",
            "m",
            "1.2.3",
            "4 apples",
            "1e",
            "1e1.5",
            "1ki",
            "1KI",
            "--1",
            "1e99999999999",
            "1 ",
        ] {
            assert_eq!(canonical(text), None, "{text}");
        }
    }

    #[test]
    fn whole_numbers() {
        for text in ["0", "110", "1k", "1000m", "1e3", "1Ki", "0.5Ki", "1.000", "-3"] {
            assert!(is_whole(text), "{text}");
        }
        for text in ["1.5", "1500m", "1n", "1e-1", "1.1Ki", "nothing"] {
            assert!(!is_whole(text), "{text}");
        }
    }

    proptest! {
        #[test]
        fn a_canonical_form_stays(
            text in "[+-]?[0-9]{0,25}(\\.[0-9]{0,12})?(n|u|m|k|M|G|T|P|E|Ki|Mi|Gi|Ti|Pi|Ei|e-?[0-9]{1,2})?",
        ) {
            if let Some(form) = canonical(&text) {
                // The form of a binary amount may have no suffix. Read again, it is a decimal amount, as in Kubernetes.
                let has_lost_its_suffix = text.ends_with('i') && form.ends_with(|last: char| last.is_ascii_digit());
                let again = canonical(&form).unwrap();
                prop_assert!(again == form || has_lost_its_suffix, "{text}: {form}, then {again}");
                prop_assert_eq!(canonical(&again), Some(again.clone()), "{}", text);
                // A binary suffix can lead to the cap, which has no fraction.
                prop_assert!(text.ends_with('i') || is_whole(&form) == is_whole(&text), "{}", text);
            }
        }
    }
}
