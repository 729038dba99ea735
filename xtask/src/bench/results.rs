//! What was measured, kept between runs in a file that a person can read.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::run::{self, Result};

/// What one round found out about one side, by name: `server_us`, `p99_ms`, ...
pub type Figures = BTreeMap<String, f64>;

/// Both sides, Dolmen first.
pub type Round = [Figures; 2];

/// All rounds of one part at one commit.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Part {
    pub commit: String,
    pub rounds: Vec<Round>,
}

impl Part {
    /// The median of a figure on one side; `None` when no round has it.
    pub fn median(&self, side: usize, figure: &str) -> Option<f64> {
        median(self.rounds.iter().filter_map(|round| round[side].get(figure).copied()).collect())
    }

    /// The largest of a figure on one side.
    pub fn worst(&self, side: usize, figure: &str) -> Option<f64> {
        self.rounds.iter().filter_map(|round| round[side].get(figure).copied()).max_by(f64::total_cmp)
    }
}

/// By key: `NAME/MEMBERS/CLIENT`.
#[derive(Clone, Debug, Default)]
pub struct Results(BTreeMap<String, Part>);

impl Results {
    fn path() -> std::path::PathBuf {
        run::target().join("bench/results.json")
    }

    /// # Errors
    /// The file is there and is none of ours.
    pub fn read() -> Result<Self> {
        let path = Self::path();
        if !path.exists() {
            return Ok(Self::default());
        }
        let parts = serde_json::from_str(&run::read(&path)?);
        parts.map(Self).map_err(|error| format!("{}: {error}; remove it to begin anew", path.display()))
    }

    /// # Errors
    /// The file cannot be written.
    pub fn write(&self) -> Result {
        let path = Self::path();
        if let Some(dir) = path.parent() {
            run::make_dir(dir)?;
        }
        let text = serde_json::to_string_pretty(&self.0).map_err(|error| error.to_string())?;
        run::write(&path, &(text + "\n"))
    }

    pub fn get(&self, key: &str) -> Option<&Part> {
        self.0.get(key)
    }

    /// How many rounds a part has at this commit.
    pub fn rounds(&self, key: &str, commit: &str) -> usize {
        self.0.get(key).filter(|part| part.commit == commit).map_or(0, |part| part.rounds.len())
    }

    /// Adds a round; those of another commit are dropped.
    pub fn add(&mut self, key: &str, commit: &str, round: Round) {
        let part = self.0.entry(key.to_owned()).or_default();
        if part.commit != commit {
            *part = Part { commit: commit.to_owned(), rounds: Vec::new() };
        }
        part.rounds.push(round);
    }

    /// Fewest and most rounds of the parts, and the commits they were measured at.
    pub fn extent(&self) -> (usize, usize, Vec<&str>) {
        let counts = self.0.values().map(|part| part.rounds.len());
        let mut commits: Vec<&str> = self.0.values().map(|part| part.commit.as_str()).collect();
        commits.sort_unstable();
        commits.dedup();
        (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0), commits)
    }
}

/// The middle one, or the mean of the middle two.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    match values.len() {
        0 => None,
        n if n % 2 == 1 => Some(values[n / 2]),
        n => Some((values[n / 2 - 1] + values[n / 2]) / 2.0),
    }
}

/// On one line.
pub fn shown(figures: &Figures) -> String {
    figures.iter().map(|(name, value)| format!(" {name} {value:.2}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(ours: f64, theirs: f64) -> Round {
        [ours, theirs].map(|value| Figures::from([("x".to_owned(), value)]))
    }

    #[test]
    fn medians_are_of_the_middle() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median(Vec::new()), None);
    }

    #[test]
    fn rounds_add_up_until_the_commit_changes() {
        let mut results = Results::default();
        for (commit, ours) in [("a", 1.0), ("a", 3.0), ("a", 8.0)] {
            results.add("put", commit, round(ours, 2.0 * ours));
        }
        let part = results.get("put").expect("a part");
        assert_eq!((part.median(0, "x"), part.median(1, "x"), part.worst(1, "x")), (Some(3.0), Some(6.0), Some(16.0)));
        assert_eq!((results.rounds("put", "a"), results.rounds("put", "b")), (3, 0));
        results.add("put", "b", round(5.0, 5.0));
        assert_eq!((results.rounds("put", "b"), results.extent()), (1, (1, 1, vec!["b"])));
    }

    #[test]
    fn results_survive_their_file() {
        let mut results = Results::default();
        results.add("put", "a", round(1.5, 2.5));
        let text = serde_json::to_string(&results.0).expect("text");
        let read: BTreeMap<String, Part> = serde_json::from_str(&text).expect("results");
        assert_eq!(read["put"].median(1, "x"), Some(2.5));
    }
}
