//! Every target with random inputs. Most of them are choices, and the others any bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use portolan_fuzz::TARGETS;
use portolan_model::world::Rng;

/// The first byte of an input that is a list of choices.
const CHOICES: u8 = 255;
/// Inputs for each target.
const INPUTS: u64 = 100;
/// Bytes of the longest input.
const LONGEST: usize = 600;

#[test]
fn every_target_takes_random_choices() {
    for target in TARGETS {
        for seed in 0..INPUTS {
            let mut rng = Rng::new(seed);
            let mut input = if rng.chance(75) { vec![CHOICES] } else { Vec::new() };
            let length = rng.below(LONGEST);
            input.extend((0..length).map(|_| rng.bits().to_le_bytes()[0]));
            let outcome = std::panic::catch_unwind(|| target.run(&input));
            assert!(outcome.is_ok(), "{} with the choices of seed {seed}", target.name);
        }
    }
}
