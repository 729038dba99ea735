//! Sizes for people, as go-humanize writes them.

const UNITS: [&str; 7] = ["B", "kB", "MB", "GB", "TB", "PB", "EB"];

/// `20 kB`, `2.1 GB`: powers of 1000, one decimal below ten.
pub fn bytes(count: u64) -> String {
    if count < 10 {
        return format!("{count} B");
    }
    // As floating point, so that it rounds where Go does.
    let exponent = ((count as f64).ln() / 1000f64.ln()).floor();
    let unit = UNITS.get(exponent as usize).copied().unwrap_or("EB");
    let value = (count as f64 / 1000f64.powf(exponent) * 10.0 + 0.5).floor() / 10.0;
    if value < 10.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

#[cfg(test)]
mod tests {
    #[test]
    fn sizes() {
        let cases = [
            (0, "0 B"),
            (9, "9 B"),
            (10, "10 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (20480, "20 kB"),
            (24576, "25 kB"),
            (999_950, "1000 kB"),
            (1_000_000, "1.0 MB"),
            (2_147_483_648, "2.1 GB"),
            (u64::MAX, "18 EB"),
        ];
        for (count, expected) in cases {
            assert_eq!(super::bytes(count), expected);
        }
    }
}
