//! Patterns with `*` (any number of characters) and `?` (one character).

/// Returns true if the pattern matches the whole text.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let (mut pattern, mut text) = (pattern.chars(), text.chars());
    // Where to backtrack to: the pattern after the last star, and the text that was not tried with it.
    let mut star: Option<(std::str::Chars<'_>, std::str::Chars<'_>)> = None;
    loop {
        let (mut next_pattern, mut next_text) = (pattern.clone(), text.clone());
        match (next_pattern.next(), next_text.next()) {
            (None, None) => return true,
            (Some('*'), _) => {
                star = Some((next_pattern.clone(), text.clone()));
                pattern = next_pattern;
            }
            (Some(wanted), Some(letter)) if wanted == '?' || wanted == letter => {
                (pattern, text) = (next_pattern, next_text);
            }
            _ => {
                let Some((after, rest)) = &mut star else { return false };
                if rest.next().is_none() {
                    return false;
                }
                (pattern, text) = (after.clone(), rest.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_and_question_marks() {
        let table = [
            ("driver", "driver", true),
            ("driver", "drivers", false),
            ("dri*", "driver", true),
            ("*", "", true),
            ("?", "", false),
            ("d?iver", "driver", true),
            ("*ab*c", "xabyabzc", true),
            ("*ab*c", "xabyabz", false),
            ("a*a", "a", false),
            ("", "", true),
            ("", "a", false),
        ];
        for (pattern, text, want) in table {
            assert_eq!(matches(pattern, text), want, "{pattern:?} {text:?}");
        }
    }
}
