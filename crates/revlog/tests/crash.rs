//! Random histories on a disk that stops anywhere and loses power in every shape; what opens again is compared with a
//! model.

mod common;

use common::{World, small};
use dolmen_env::{Fault, PowerLoss, Rng, SimDisk};
use dolmen_revlog::{Error, Hint, Options};

const STEPS: usize = 120;

fn run(world: &mut World, steps: usize) -> Result<(), Error> {
    for _ in 0..steps {
        world.step()?;
    }
    Ok(())
}

/// Disk calls of a whole history without a fault.
fn calls(seed: u64, options: &Options) -> u64 {
    let disk = SimDisk::new(seed);
    let mut world = World::new(disk.clone(), seed, options.clone());
    run(&mut world, STEPS).unwrap();
    disk.calls()
}

fn crash(seed: u64, k: u64, shape: PowerLoss, options: &Options) {
    let disk = SimDisk::new(seed ^ k << 8);
    let mut world = World::new(disk.clone(), seed, options.clone());
    disk.inject(Fault::CrashAfter { calls: k });
    let result = run(&mut world, STEPS);
    assert_eq!(result.is_err(), disk.crashed(), "only the crash may fail: {result:?}");
    if result.is_ok() {
        return;
    }
    world.close();
    disk.power_loss(shape);
    // A second crash while the first is being recovered from.
    if k.is_multiple_of(3) {
        disk.inject(Fault::CrashAfter { calls: k / 3 % 12 });
        if world.open().is_err() {
            world.close();
            disk.power_loss(shape);
        }
        disk.clear_faults();
        world.close();
        disk.kill();
    }
    world.open().unwrap_or_else(|e| panic!("seed {seed} call {k} {shape:?}: {e}"));
    run(&mut world, 30).unwrap();
    if world.log.is_some() {
        world.drain(Hint::Sync).unwrap();
    }
    world.close();
    disk.power_loss(PowerLoss::LoseAll);
    world.open().unwrap();
}

fn context(seed: u64, k: u64, shape: PowerLoss, f: impl FnOnce() + std::panic::UnwindSafe) {
    if let Err(panic) = std::panic::catch_unwind(f) {
        eprintln!("seed {seed}, call {k}, {shape:?}");
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn every_crash_point_of_a_few_histories() {
    for seed in 1..4 {
        let options = small();
        for k in 0..calls(seed, &options) {
            let shape = PowerLoss::ALL[((k + seed) % 5) as usize];
            context(seed, k, shape, || crash(seed, k, shape, &small()));
        }
    }
}

#[test]
fn sampled_crash_points_of_many_histories() {
    let mut rng = Rng::new(99);
    for seed in 100..400 {
        let mut options = small();
        options.history_bytes = [0, 0, 500, 3000][rng.below(4) as usize];
        options.spare_bytes = [0, 2000][rng.below(2) as usize];
        options.segment_bytes = [600, 2000, 9000][rng.below(3) as usize];
        let all = calls(seed, &options);
        for _ in 0..6 {
            let (k, shape) = (rng.below(all), PowerLoss::ALL[rng.below(5) as usize]);
            context(seed, k, shape, || crash(seed, k, shape, &options.clone()));
        }
    }
}

/// A failed call ends the process, not the machine: the page cache may show what the medium will never have.
#[test]
fn a_failed_call_costs_nothing_durable() {
    let mut rng = Rng::new(7);
    for seed in 500..700 {
        let all = calls(seed, &small());
        for _ in 0..5 {
            let k = rng.below(all);
            let disk = SimDisk::new(seed ^ k << 8);
            let mut world = World::new(disk.clone(), seed, small());
            disk.inject(Fault::Eio { after: k });
            let result = run(&mut world, STEPS);
            if result.is_ok() {
                continue;
            }
            context(
                seed,
                k,
                PowerLoss::LoseAll,
                std::panic::AssertUnwindSafe(|| {
                    world.close();
                    disk.kill();
                    world.open().unwrap();
                    world.close();
                    disk.power_loss(PowerLoss::ALL[(k % 5) as usize]);
                    world.open().unwrap();
                    run(&mut world, 30).unwrap();
                }),
            );
        }
    }
}
