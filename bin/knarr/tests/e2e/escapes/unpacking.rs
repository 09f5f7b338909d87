//! Images whose layers name files outside of the image: the archive is refused, or its files stay in the
//! image.

use serde_json::json;

use super::attacker::{self, layer_of_base};
use super::cases::{Attack, End, Setting, VARIANTS};
use super::host::{make_marker, marker_changes};
use super::layers::{Layer, save};
use super::outcome;
use super::table::{all_ended, pod};
use crate::cluster::shared;

/// Returns each layer with the reason of its refusal, if it is refused. Sources: CVE-2018-15664's and
/// CVE-2024-3727's families of archives.
fn layers(marker: &str) -> Vec<(&'static str, Layer, Option<&'static str>)> {
    let (file, up) = (format!("{marker}/of-the-host"), "../../../../../../../../../../..");
    let above = marker.trim_start_matches('/');
    let layer = Layer::new;
    vec![
        ("absolute", layer().file(&format!("{marker}/by-absolute"), 0o644, "x"), None),
        ("above", layer().file(&format!("{up}{marker}/by-above"), 0o644, "x"), Some("leaves the layer")),
        ("link", layer().symlink("way", marker).file("way/by-link", 0o644, "x"), None),
        (
            "relative",
            layer().symlink("way", &format!("{up}/{above}")).file("way/by-relative", 0o644, "x"),
            None,
        ),
        ("through", layer().symlink("f", &file).file("f", 0o644, "changed"), None),
        ("chain", layer().symlink("a", marker).symlink("b", "a").folder("b/by-chain/", 0o755), None),
        ("hard", layer().hard_link("h", &file).file("h", 0o777, "changed"), Some("does not exist")),
        ("harder", layer().symlink("way", "/").hard_link("h", &format!("way{file}")), Some("does not exist")),
        ("hardest", layer().hard_link("h", &format!("{up}{file}")), Some("leaves the layer")),
        ("whiteout", layer().symlink("way", marker).file("way/.wh.of-the-host", 0o644, ""), None),
        ("opaque", layer().symlink("way", marker).file("way/.wh..wh..opq", 0o644, ""), None),
        (
            "outside",
            layer().file(&format!("{up}{marker}/.wh.of-the-host"), 0o644, ""),
            Some("leaves the layer"),
        ),
    ]
}

#[test]
fn images_stay_in_their_layers() {
    let cluster = shared();
    attacker::import(cluster);
    let kubectl = cluster.namespace("escapes-images");
    let marker = make_marker(&cluster.sandbox.path("unpack"));
    let text = marker.to_string_lossy().into_owned();
    let base = layer_of_base(cluster);
    let setting = Setting { marker: text.clone(), disk: "0:0".to_owned(), tries: 0 };
    let mut attack = Attack::new("images", VARIANTS[0], &setting);
    for (name, layer, refusal) in layers(&text) {
        let archive = cluster.sandbox.path(&format!("{name}.tar"));
        let (image, layer) = (format!("knarr.local/hostile:{name}"), layer.done());
        save(&archive, &[(&image, vec![&base, &layer])]);
        let output = cluster.try_image(&["import".to_owned(), archive.to_string_lossy().into_owned()]);
        let error = String::from_utf8_lossy(&output.stderr);
        match refusal {
            Some(reason) => assert!(!output.status.success() && error.contains(reason), "{name}: {output:?}"),
            None => {
                assert!(output.status.success(), "{name}: {output:?}");
                let fields = json!({"image": image});
                attack = attack.runs(
                    name,
                    &json!(["/bin/sh", "-c", "echo ran >/result"]),
                    End::Says("ran"),
                    fields,
                );
            }
        }
    }
    kubectl.apply(&attack.pod);
    let attacks = [attack];
    let pods = all_ended(&kubectl, &attacks);
    let faults = outcome::faults(&attacks[0], &pod(&pods, &attacks[0].name));
    assert_eq!(faults, Vec::<String>::new());
    assert_eq!(marker_changes(&marker), Vec::<String>::new());
}
