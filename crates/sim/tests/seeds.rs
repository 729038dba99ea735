//! Fixed seeds that must pass, and runs that must repeat.

use dolmen_sim::{Options, run};

#[test]
fn fifty_seeds_keep_every_promise() {
    let options = Options { short: true, ..Options::default() };
    for seed in 0..50 {
        let report = run(seed, &options);
        assert!(report.failure.is_none(), "{}", report.text(&options));
    }
}

#[test]
fn a_seed_gives_one_trace() {
    let options = Options { short: true, ..Options::default() };
    for seed in 1000..1020 {
        let (first, second) = (run(seed, &options), run(seed, &options));
        assert_eq!((first.trace, first.events), (second.trace, second.events), "seed {seed}");
        assert_eq!(first.stats, second.stats, "seed {seed}");
    }
}
