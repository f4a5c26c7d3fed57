//! Edits of a text with lines of words.

use super::MOST;
use crate::script::Script;

/// Bytes of the longest text that an edit inserts.
const LONGEST: usize = 64;

/// Edits lines until the script is over.
pub(crate) fn edit(text: &str, script: &mut Script<'_>) -> String {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    for _ in 0..MOST {
        if script.is_over() || lines.is_empty() {
            break;
        }
        let at = script.below(lines.len());
        let other = script.below(lines.len());
        match script.below(7) {
            0 => drop(lines.remove(at)),
            1 => lines.insert(script.below(lines.len() + 1), lines[at].clone()),
            2 => lines.swap(at, other),
            3 => {
                let (mut words, donors) = (words(&lines[at]), words(&lines[other]));
                let to = script.below(words.len());
                words[to] = script.pick(&donors);
                lines[at] = words.join(" ");
            }
            4 => {
                let mut words = words(&lines[at]);
                words.remove(script.below(words.len()));
                lines[at] = words.join(" ");
            }
            5 => {
                let inserted = String::from_utf8_lossy(script.bytes(LONGEST));
                let mut words = words(&lines[at]);
                let to = script.below(words.len());
                words[to] = &inserted;
                lines[at] = words.join(" ");
            }
            _ => {
                let mut bytes = std::mem::take(&mut lines[at]).into_bytes();
                let place = script.below(bytes.len());
                if let Some(byte) = bytes.get_mut(place) {
                    *byte = script.byte();
                }
                lines[at] = String::from_utf8_lossy(&bytes).into_owned();
            }
        }
    }
    lines.push(String::new());
    lines.join("\n")
}

/// Returns the words of a line, between single spaces. There is at least one, which may be empty.
fn words(line: &str) -> Vec<&str> {
    line.split(' ').collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::random;

    #[test]
    fn edits_change_lines() {
        let text = portolan_iptables::fuzzing::KUBE_PROXY;
        let edited = |seed| edit(text, &mut Script::new(&random(seed, 12)));
        let changed = (0..64).filter(|seed| edited(*seed) != text).count();
        assert!(changed > 60, "{changed}");
    }
}
