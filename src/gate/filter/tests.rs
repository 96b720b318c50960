//! Filters remember what they are told, forget the oldest, and come back from a file or not at all.

use super::*;
use crate::domain::Fingerprint;
use std::sync::Arc;
use tempfile::TempDir;

const SEED: u128 = 0x2545_F491_4F6C_DD1D;

fn role() -> RoleName {
    RoleName::INVENTORY
}

fn key(number: usize) -> Key {
    Key::stored(&format!("O{number}/deduct"))
}

fn filter(shape: Shape) -> Filter {
    Filter::new(shape, SEED, &RoleName::BUILT_IN)
}

fn put(filter: &Filter, numbers: impl IntoIterator<Item = usize>) {
    let keys: Vec<_> = numbers.into_iter().map(key).collect();
    filter.insert(&role(), keys.iter().map(Key::as_str));
}

fn maybes(filter: &Filter, numbers: impl IntoIterator<Item = usize>) -> usize {
    let numbers = numbers.into_iter();
    numbers
        .filter(|&number| !filter.is_absent(&role(), &key(number)))
        .count()
}

#[test]
fn shapes_are_those_of_the_formulas() {
    let of_ten_million = Shape::of(10_000_000, 0.01);
    // 95,850,584 bits, rounded up to whole words: about 12 MB.
    assert_eq!(of_ten_million.bits, 95_850_624);
    assert_eq!(of_ten_million.hashes, 7);
    assert_eq!(of_ten_million.bytes(), 11_981_328);
    for (expected, rate, bits, hashes) in [
        (1_000_000, 0.01, 9_585_088, 7),
        (1_000_000, 0.001, 14_377_600, 10),
        (1, 0.5, 64, 1),
        (0, 0.5, 64, 1),
        (1, 0.99, 64, 1),
    ] {
        let shape = Shape::of(expected, rate);
        assert_eq!(
            (shape.bits, shape.hashes),
            (bits, hashes),
            "{expected} {rate}"
        );
    }
}

#[test]
fn what_it_was_told_is_never_absent_and_little_else_is_maybe() {
    let filter = filter(Shape::of(20_000, 0.01));
    put(&filter, 0..19_000);
    assert_eq!(maybes(&filter, 0..19_000), 19_000);
    let mistaken = maybes(&filter, 100_000..150_000);
    // 1% of 50,000 at the full number of keys.
    assert!((100..=600).contains(&mistaken), "{mistaken} of 50,000");
    assert!(
        filter.is_absent(&RoleName::ORDER, &key(1)),
        "of another role"
    );
}

#[test]
fn a_role_that_it_does_not_keep_is_not_absent() {
    let filter = Filter::new(Shape::of(10, 0.01), SEED, &[RoleName::ORDER]);
    filter.insert(&role(), ["a"]);
    assert!(!filter.is_absent(&role(), &key(1)));
}

#[test]
fn the_oldest_keys_go_when_two_generations_are_full() {
    let filter = filter(Shape::of(1_000, 0.001));
    let all = |filter: &Filter, from: usize| maybes(filter, from..from + 900) == 900;
    put(&filter, 0..900);
    put(&filter, 1_000..1_900);
    assert!(all(&filter, 0) && all(&filter, 1_000));
    // Told again, a key takes no room.
    put(&filter, (1_000..1_900).chain(1_000..1_900));
    put(&filter, 2_000..2_900);
    assert!(all(&filter, 1_000) && all(&filter, 2_000));
    put(&filter, 3_000..4_900);
    assert!(all(&filter, 4_000));
    let left = maybes(&filter, 0..900);
    assert!(left < 90, "{left} of 900 that had to go");
}

#[test]
fn a_filter_far_past_its_size_or_of_64_bits_says_maybe() {
    let small = Shape::of(10_000, 0.01).with_bits(64);
    let filter = filter(small);
    put(&filter, 0..5_000);
    assert_eq!(maybes(&filter, 0..5_000), 5_000);
    assert_eq!(maybes(&filter, 50_000..51_000), 1_000);
}

#[test]
fn keys_that_many_threads_put_in_are_all_there() {
    let filter = Arc::new(filter(Shape::of(100_000, 0.01)));
    let threads = (0..8).map(|thread| {
        let filter = Arc::clone(&filter);
        std::thread::spawn(move || put(&filter, (0..8_000).map(|n| thread * 10_000 + n)))
    });
    for thread in threads.collect::<Vec<_>>() {
        thread.join().unwrap();
    }
    for thread in 0..8 {
        let of_thread = thread * 10_000..thread * 10_000 + 8_000;
        assert_eq!(maybes(&filter, of_thread), 8_000);
    }
}

#[tokio::test]
async fn its_mistakes_are_counted() {
    let told = |key, is_first| Told {
        key,
        fingerprint: Fingerprint([0; 32]),
        is_first,
    };
    let filter = filter(Shape::of(10_000, 0.01).with_bits(64));
    put(&filter, 0..5_000);
    let (known, new) = (key(1), key(70_000));
    filter
        .tell(&role(), &[told(&known, false), told(&new, true)])
        .await;
    let expected = Mistakes {
        first: 1,
        mistaken: 1,
    };
    assert_eq!(filter.mistakes(), expected);
    let roomy = self::filter(Shape::of(10_000, 0.000_001));
    roomy.tell(&role(), &[told(&new, true)]).await;
    assert_eq!(
        roomy.mistakes(),
        Mistakes {
            first: 1,
            mistaken: 0
        }
    );
    let answers = roomy.ask(&role(), &[&known, &new]).await;
    assert_eq!(answers, [Known::Absent, Known::Unknown]);
}

#[test]
fn it_comes_back_from_its_file_with_both_generations() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("filter");
    let shape = Shape::of(1_000, 0.001);
    let filter = filter(shape);
    put(&filter, 0..1_000);
    put(&filter, 1_000..1_700);
    filter.save(&path).unwrap();
    let back = Filter::load(&path, shape, &RoleName::BUILT_IN).unwrap();
    assert_eq!(maybes(&back, 0..1_700), 1_700);
    assert!(maybes(&back, 10_000..11_000) < 50);
    assert_eq!(maybes(&back, 5_000..9_000), maybes(&filter, 5_000..9_000));
    // It goes on where it was.
    put(&back, 2_000..2_900);
    assert_eq!(maybes(&back, 1_001..1_700), 699);
    assert!(maybes(&back, 0..900) < 90);
}

#[test]
fn a_file_that_does_not_fit_is_not_read() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("filter");
    let shape = Shape::of(100, 0.01);
    let load = || {
        Filter::load(&path, shape, &RoleName::BUILT_IN)
            .map(drop)
            .unwrap_err()
    };
    let says = |part: &str| {
        let error = load().to_string();
        assert!(error.contains(part), "{error}");
    };
    says("cannot be read");
    filter(shape).save(&path).unwrap();
    let good = std::fs::read(&path).unwrap();

    for length in 0..good.len() {
        std::fs::write(&path, &good[..length]).unwrap();
        load();
    }
    for place in 0..good.len() {
        let mut bad = good.clone();
        bad[place] ^= 1;
        std::fs::write(&path, bad).unwrap();
        load();
    }
    std::fs::write(&path, b"orderonce bloom0 and more than thirty-two bytes").unwrap();
    says("is no filter of this version");
    std::fs::write(&path, [&good[..], b"x"].concat()).unwrap();
    says("is damaged");
    std::fs::write(&path, &good).unwrap();
    let other = Filter::load(&path, Shape::of(101, 0.01), &RoleName::BUILT_IN);
    assert!(matches!(other, Err(Unfit::OtherShape)));
    let other = Filter::load(&path, shape, &[RoleName::ORDER]);
    assert!(matches!(other, Err(Unfit::OtherShape)));
}
