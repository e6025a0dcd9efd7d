// The loop that an oplog of 25-byte records is compared with: one write and one seek for each
// record, as in the article that the format is from. Prints records/s.
use std::env;
use std::fs::OpenOptions;
use std::io::{Seek, SeekFrom, Write};
use std::time::Instant;

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = env::args().collect();
    let records: u64 = arguments[2].parse().expect("a number of records");
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(&arguments[1])?;
    let began = Instant::now();
    for n in 0..records {
        let mut record = [0u8; 25];
        record[..8].copy_from_slice(&(n + 1).to_le_bytes());
        record[8..16].copy_from_slice(&(n % 150_001 + 1).to_le_bytes());
        record[16..24].copy_from_slice(&7u64.to_le_bytes());
        record[24] = 1;
        file.write_all(&record)?;
        file.seek(SeekFrom::End(0))?;
    }
    println!("{:.0}", records as f64 / began.elapsed().as_secs_f64());
    Ok(())
}
