//! Owns the codec's figures: speed beside memcpy in the same run, and fidelity; `--json` for machines.

#[path = "../../tests/int8/data.rs"]
mod data;
mod fidelity;
mod speed;
#[path = "../../tests/int8/trip.rs"]
mod trip;

use std::fmt::Write as _;
use std::io::{self, Write as _};

use tierkv_core::codec::int8::Isa;

use speed::{Case, Figures};

fn main() -> io::Result<()> {
    let options: Vec<String> = std::env::args().skip(1).collect();
    let wanted = options.iter().find(|option| !option.starts_with('-'));
    let isa = wanted.map_or(Isa::best(), |name| {
        Isa::all().into_iter().find(|isa| isa.name() == name).unwrap_or_else(Isa::best)
    });
    let figures: Vec<(Case, Figures)> =
        Case::ALL.iter().map(|case| (*case, speed::measure(isa, case))).collect();
    let report = if options.iter().any(|option| option == "--json") {
        json(isa, &figures)
    } else {
        text(isa, &figures)
    };
    io::stdout().write_all(report.as_bytes())
}

fn text(isa: Isa, figures: &[(Case, Figures)]) -> String {
    let mut out = format!(
        "codec int8, {}, one core, {} MiB of source, median of {} rounds\n",
        isa.name(),
        speed::SET_BYTES >> 20,
        speed::ROUNDS
    );
    for (case, figures) in figures {
        let _ = writeln!(
            out,
            "  {:<22} memcpy {:5.2} GB/s   encode {:5.2} GB/s = {:.2} x   decode {:5.2} GB/s = {:.2} x",
            case.name,
            figures.memcpy_gbps,
            figures.encode_gbps,
            figures.encode_over_memcpy,
            figures.decode_gbps,
            figures.decode_over_memcpy
        );
    }
    let _ =
        writeln!(out, "  bytes of bf16 over bytes of int8, head dim 128: {:.3}", fidelity::ratio());
    for (spread, db) in fidelity::all() {
        let _ = writeln!(out, "  true SNR, bf16, head dim 128, {:<12} {db:.1} dB", spread.name());
    }
    out
}

fn json(isa: Isa, figures: &[(Case, Figures)]) -> String {
    let cases: Vec<String> = figures
        .iter()
        .map(|(case, figures)| {
            format!(
                "{{\"case\":\"{}\",\"memcpyGbps\":{:.3},\"encodeGbps\":{:.3},\"encodeOverMemcpy\":{:.3},\
                 \"decodeGbps\":{:.3},\"decodeOverMemcpy\":{:.3}}}",
                case.name,
                figures.memcpy_gbps,
                figures.encode_gbps,
                figures.encode_over_memcpy,
                figures.decode_gbps,
                figures.decode_over_memcpy
            )
        })
        .collect();
    let snr: Vec<String> =
        fidelity::all().map(|(spread, db)| format!("\"{}\":{db:.2}", spread.name())).collect();
    format!(
        "{{\"codec\":\"int8\",\"isa\":\"{}\",\"setBytes\":{},\"rounds\":{},\"cases\":[{}],\"snrDb\":{{{}}},\
         \"bf16OverInt8\":{:.4}}}\n",
        isa.name(),
        speed::SET_BYTES,
        speed::ROUNDS,
        cases.join(","),
        snr.join(","),
        fidelity::ratio()
    )
}
