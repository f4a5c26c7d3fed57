//! Every target with random choices. Inputs begin as edits do, or with any byte.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test stops at the first surprise")]

use portolan_fuzz::TARGETS;
use portolan_model::world::Rng;

/// Inputs for each target.
const INPUTS: u64 = 100;
/// Bytes of the longest input.
const LONGEST: usize = 600;

#[test]
fn every_target_takes_random_choices() {
    for target in TARGETS {
        for seed in 0..INPUTS {
            let mut rng = Rng::new(seed);
            let mut input = rng.pick(&[&[1][..], &[255], &[255, 255], &[]]).unwrap().to_vec();
            let length = rng.below(LONGEST);
            input.extend((0..length).map(|_| rng.bits().to_le_bytes()[0]));
            let outcome = std::panic::catch_unwind(|| target.run(&input));
            assert!(outcome.is_ok(), "{} with the choices of seed {seed}", target.name);
        }
    }
}
