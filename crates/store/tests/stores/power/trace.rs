//! Reads what strace wrote about etcd: a line for each call, or two lines if another thread came between.
//!
//! A position in this text is a moment. strace writes the line of a call, and flushes it, before it lets the thread go
//! on. So whatever happens because a call has returned comes after its line. No clock is needed.

use std::{
    collections::HashMap,
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
};

/// The calls that change files or sync them, or that say which file a descriptor stands for. A question mark: not every
/// architecture has the call.
const CALLS: &str = "?open,openat,?openat2,?creat,close,dup,?dup2,dup3,fcntl,lseek,mmap,\
    write,writev,pwrite64,pwritev,?pwritev2,ftruncate,truncate,fallocate,fsync,fdatasync,\
    ?rename,renameat,renameat2,?unlink,unlinkat,?rmdir,?mkdir,mkdirat,?link,linkat,?symlink,symlinkat,copy_file_range,sendfile,splice";
const DEADLINE: Duration = Duration::from_secs(120);

/// Bytes of a text that strace writes in full: more than etcd writes at once.
const LONGEST: &str = "67108864";

/// A call of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call<'a> {
    pub name: &'a str,
    /// The arguments, as strace writes them. Parts of a structure are arguments of their own.
    pub args: Vec<&'a str>,
    /// Where its line begins.
    pub begin: usize,
    /// Where the line ends that has the result; [`usize::MAX`] if the call did not return.
    pub end: usize,
    /// What it returned: -1 for a failure.
    pub result: Option<i64>,
}

/// Returns the command that runs a program and writes its calls to `file`.
///
/// The program is the child of the caller, and strace a process beside it that ends with it (`-D`).
pub fn strace(file: &Path) -> Vec<String> {
    let words = ["strace", "-D", "-f", "--seccomp-bpf", "-q", "-xx", "-s", LONGEST, "-e", "signal=KILL"];
    let mut words: Vec<String> = words.map(str::to_owned).into();
    words.extend(["-e".into(), format!("trace={CALLS}"), "-o".into(), file.to_str().unwrap().into()]);
    words.push("--".into());
    words
}

/// Returns the text of a trace when strace has written that a process has ended.
pub fn read(file: &Path, process: u32) -> String {
    let (begin, process) = (Instant::now(), process.to_string());
    loop {
        let text = fs::read_to_string(file).unwrap();
        let is_end = |line: &str| {
            line.split_once(' ').is_some_and(|(id, text)| id == process && text.trim().starts_with("+++"))
        };
        if text.ends_with('\n') && text.lines().rev().take(100).any(is_end) {
            return text;
        }
        assert!(begin.elapsed() < DEADLINE, "strace does not write the end of {process}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the calls in the order in which they began.
pub fn calls(trace: &str) -> Result<Vec<Call<'_>>, String> {
    let (mut calls, mut waiting, mut end) = (Vec::<Call<'_>>::new(), HashMap::new(), 0);
    for line in trace.split_inclusive('\n') {
        let begin = end;
        end += line.len();
        let line = line.strip_suffix('\n').ok_or("the last line is not complete")?;
        let wrong = |what: &str| format!("{what}: {}", short(line));
        let (thread, text) = line.split_once(' ').ok_or_else(|| wrong("not a line of strace"))?;
        let text = text.trim_start();
        if text.starts_with("+++") || text.starts_with("---") {
            continue;
        }
        let (rest, result) = returned(text).ok_or_else(|| wrong("not the result of a call"))?;
        let end = if result.is_some() { end } else { usize::MAX };
        if rest.starts_with("<... ") {
            let number: usize = waiting.remove(thread).ok_or_else(|| wrong("not begun before"))?;
            let call = calls.get_mut(number).ok_or("no such call")?;
            (call.end, call.result) = (end, result);
            continue;
        }
        let (name, args) = rest.split_once('(').ok_or_else(|| wrong("not a call"))?;
        if result.is_none() {
            waiting.insert(thread, calls.len());
        }
        calls.push(Call { name, args: args.split(", ").collect(), begin, end, result });
    }
    Ok(calls)
}

/// Splits `name(arguments) = result`. Nothing is returned for a line that is neither that nor a part of it.
fn returned(text: &str) -> Option<(&str, Option<i64>)> {
    // The second one: the thread was killed.
    let unfinished = [" <unfinished ...>", " <detached ...>"];
    if let Some(rest) = unfinished.into_iter().find_map(|end| text.strip_suffix(end)) {
        return Some((rest, None));
    }
    let (rest, result) = text.rsplit_once("= ")?;
    let rest = rest.trim_end().strip_suffix(')')?;
    let word = result.split(' ').next()?;
    if word == "?" {
        return Some((rest, None));
    }
    let number = match word.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok()?.cast_signed(),
        None => word.parse().ok()?,
    };
    Some((rest, Some(number)))
}

/// Returns the bytes of an argument such as `"\x2f\x74"`.
pub fn bytes(arg: &str) -> Result<Vec<u8>, String> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let text = arg.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let bytes = text.and_then(|text| {
        let bytes = text.as_bytes().chunks(4).map(|four| match four {
            [b'\\', b'x', high, low] => Some((digit(*high)? << 4) | digit(*low)?),
            _ => None,
        });
        bytes.collect()
    });
    bytes.ok_or_else(|| format!("not a whole text in hexadecimal digits: {}", short(arg)))
}

/// Returns the begin and the end of a text, for messages.
fn short(text: &str) -> String {
    let (begin, end) = (text.get(..40), text.get(text.len().saturating_sub(40)..));
    if text.len() < 80 {
        text.to_owned()
    } else {
        format!("{}...{}", begin.unwrap_or("?"), end.unwrap_or("?"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = "\
7     openat(AT_FDCWD, \"\\x2f\\x61\", O_RDWR|O_CREAT|O_CLOEXEC, 0600) = 3
7     write(3, \"\\x68\\x69\", 2 <unfinished ...>
8     fcntl(4, F_GETFL)                 = 0x8000 (flags O_RDONLY|O_LARGEFILE)
7     <... write resumed>)              = 2
8     unlinkat(AT_FDCWD, \"\\x2f\\x62\", 0) = -1 ENOENT (No such file or directory)
8     fdatasync(3 <unfinished ...>
8     +++ killed by SIGKILL +++
9     fsync(4 <detached ...>
7     fsync(3)                          = ?
";

    #[test]
    fn calls_have_their_arguments_result_and_place() {
        let calls = calls(TRACE).unwrap();
        let short: Vec<_> = calls.iter().map(|call| (call.name, call.args[0], call.result)).collect();
        let wanted = [
            ("openat", "AT_FDCWD", Some(3)),
            ("write", "3", Some(2)),
            ("fcntl", "4", Some(0x8000)),
            ("unlinkat", "AT_FDCWD", Some(-1)),
            ("fdatasync", "3", None),
            ("fsync", "4", None),
            ("fsync", "3", None),
        ];
        assert_eq!(short, wanted);
        let at = |text: &str| TRACE.find(text).unwrap();
        assert_eq!((calls[1].begin, calls[1].end), (at("7     write"), at("8     unlinkat")));
        assert_eq!((calls[2].begin, calls[2].end), (at("8     fcntl"), at("7     <...")));
        assert!(calls[4..].iter().all(|call| call.end == usize::MAX));
        assert_eq!(calls[0].args[2], "O_RDWR|O_CREAT|O_CLOEXEC");
    }

    #[test]
    fn a_text_is_whole_or_refused() {
        assert_eq!(bytes("\"\\x68\\xff\""), Ok(vec![0x68, 0xff]));
        assert_eq!(bytes("\"\""), Ok(Vec::new()));
        for wrong in ["\"\\x68\"...", "\"h\"", "\"\\x6\"", "NULL"] {
            bytes(wrong).unwrap_err();
        }
    }

    #[test]
    fn what_is_not_a_line_of_strace_is_refused() {
        let without_end = "7     fsync(3) = 0";
        for wrong in
            ["nonsense\n", "7     <... write resumed>) = 2\n", "7     write(3, \"\", 0)\n", without_end]
        {
            calls(wrong).unwrap_err();
        }
    }
}
