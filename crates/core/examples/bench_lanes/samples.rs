//! Owns the measures of rounds: rates, and processor time of both processes.

use std::fmt::Write as _;
use std::time::Instant;

use super::near::Near;

/// Samples by name, in the order of first use.
#[derive(Default)]
pub struct Samples(Vec<(String, Vec<f64>)>);

impl Samples {
    pub fn add(&mut self, name: &str, value: f64) {
        match self.0.iter_mut().find(|(other, _)| other == name) {
            Some((_, samples)) => samples.push(value),
            None => self.0.push((name.to_owned(), vec![value])),
        }
    }

    pub fn json(&self) -> String {
        let mut text = String::new();
        for (name, samples) in &self.0 {
            let comma = if text.is_empty() { "" } else { "," };
            write!(text, "{comma}\"{name}\":{samples:?}").unwrap();
        }
        text
    }
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^53")]
fn gigabytes(bytes: usize) -> f64 {
    bytes as f64 / 1e9
}

/// Returns processor seconds so far, in steps of 10 ms: near user, near kernel, far user, far kernel.
fn cpu_seconds(near: &Near) -> [f64; 4] {
    let [near, far] = ["self".to_owned(), near.far.id().to_string()].map(|process| {
        let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
        let mut fields = stat.rsplit_once(") ").unwrap().1.split(' ').skip(11);
        [(); 2].map(|()| f64::from(fields.next().unwrap().parse::<u32>().unwrap()) / 100.0)
    });
    [near[0], near[1], far[0], far[1]]
}

/// Measures `work`: adds samples of GB/s of `bytes`, and of processor seconds per GB.
pub fn measure(
    samples: &mut Samples,
    near: &mut Near,
    name: &str,
    bytes: usize,
    work: impl FnOnce(&mut Near),
) {
    let (before, started) = (cpu_seconds(near), Instant::now());
    work(near);
    let seconds = started.elapsed().as_secs_f64();
    let after = cpu_seconds(near);
    samples.add(&format!("{name}Gbps"), gigabytes(bytes) / seconds);
    let spent: Vec<f64> = after.iter().zip(before).map(|(after, before)| after - before).collect();
    samples.add(&format!("{name}CpuSPerGb"), spent.iter().sum::<f64>() / gigabytes(bytes));
    for (part, spent) in ["NearUser", "NearSys", "FarUser", "FarSys"].iter().zip(spent) {
        samples.add(&format!("{name}{part}"), spent / gigabytes(bytes));
    }
}
