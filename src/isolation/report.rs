//! What is in force, what is not, why not, and what would change that. Pure.

use serde::Serialize;

use crate::{
    config::{Network, Tier},
    egress::Rules,
};

/// One way in which a function is kept apart.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Layer {
    /// Its name.
    pub name: &'static str,
    /// The tier that it belongs to.
    pub tier: Tier,
    /// Whether it is in force.
    pub in_force: bool,
    /// Why not, or how far it goes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What would put it into force.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enable: Option<String>,
    /// Whether the tier is not there without it.
    #[serde(skip)]
    pub decides: bool,
}

impl Layer {
    /// One that is in force.
    pub(super) fn on(name: &'static str, tier: Tier) -> Self {
        Self { name, tier, in_force: true, why: None, enable: None, decides: true }
    }

    /// One that is not.
    pub(super) fn off(name: &'static str, tier: Tier, why: impl Into<String>, enable: &str) -> Self {
        let enable = (!enable.is_empty()).then(|| enable.to_owned());
        Self { name, tier, in_force: false, why: Some(why.into()), enable, decides: true }
    }

    /// With a word on how far it goes.
    pub(super) fn but(self, why: impl Into<String>) -> Self {
        Self { why: Some(why.into()), ..self }
    }

    /// The tier can be had without it.
    pub(super) fn optional(self) -> Self {
        Self { decides: false, ..self }
    }
}

/// Everything about isolation on this machine, for one set of settings.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The best tier all of whose layers are in force.
    pub tier: Tier,
    /// All layers, weakest tier first.
    pub layers: Vec<Layer>,
}

impl Report {
    pub(super) fn new(layers: Vec<Layer>) -> Self {
        let is_whole =
            |tier: Tier| layers.iter().all(|layer| layer.tier > tier || layer.in_force || !layer.decides);
        let tier = [Tier::Isolated, Tier::Confined].into_iter().find(|tier| is_whole(*tier));
        Self { tier: tier.unwrap_or(Tier::Base), layers }
    }

    /// Puts a layer that does not decide about a tier in the place of the one of its name, or to the end.
    pub(super) fn replace(&mut self, layer: Layer) {
        match self.layers.iter_mut().find(|old| old.name == layer.name) {
            Some(old) => *old = layer,
            None => self.layers.push(layer),
        }
    }

    /// Whether this layer is in force.
    pub fn has(&self, name: &str) -> bool {
        self.layers.iter().any(|layer| layer.name == name && layer.in_force)
    }

    /// Why calls cannot be served that are to have the control groups that somebody has named a folder for.
    pub fn no_group(&self) -> Option<String> {
        let layer = self.layers.iter().find(|layer| layer.name == "controlGroup" && !layer.in_force)?;
        Some(format!("the option cgroupDir cannot be met: {}. See isolationReport()", told(layer)))
    }

    /// The layers that keep `tier` from being there.
    pub fn missing(&self, tier: Tier) -> impl Iterator<Item = &Layer> {
        self.layers.iter().filter(move |layer| layer.tier <= tier && layer.decides && !layer.in_force)
    }

    /// Where less is in force than `before` was in the same process: what is missing, in words.
    pub fn fall_from(&self, before: Tier) -> Option<String> {
        (self.tier < before).then(|| self.missing_names(before))
    }

    /// Those layers, in words.
    pub fn missing_names(&self, tier: Tier) -> String {
        self.missing(tier).map(told).collect::<Vec<_>>().join("; ")
    }

    /// Why calls that need this cannot be served.
    pub fn objection(&self, required: Option<Tier>, network: Network, rules: &Rules) -> Option<String> {
        if let Some(tier) = required.filter(|tier| *tier > self.tier) {
            return Some(format!(
                "isolation {{ require: \"{}\" }} cannot be met: the tier in force is \"{}\"; missing: {}. See isolationReport()",
                tier.name(),
                self.tier.name(),
                self.missing_names(tier),
            ));
        }
        let (name, what) = match network {
            Network::None => ("networkClosed", "network: \"none\"".to_owned()),
            // What it closes is closed where that can be had: a layer of its own says whether it is.
            Network::Open if *rules == Rules::default() => return None,
            Network::Open => ("networkRules", format!("network: {}", rules.to_value())),
        };
        let missing = self.layers.iter().find(|layer| layer.name == name && !layer.in_force)?;
        Some(format!("{what} cannot be enforced here: {}. See isolationReport()", told(missing)))
    }
}

fn told(layer: &Layer) -> String {
    layer.why.as_ref().map_or_else(|| layer.name.to_owned(), |why| format!("{} ({why})", layer.name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(landlock: bool, user: bool) -> Report {
        let layer =
            |name, tier, on| if on { Layer::on(name, tier) } else { Layer::off(name, tier, "no", "") };
        Report::new(vec![
            Layer::on("processGroup", Tier::Base),
            layer("files", Tier::Confined, landlock),
            layer("privateUser", Tier::Confined, user).optional(),
            layer("networkClosed", Tier::Confined, landlock).optional(),
            layer("networkRules", Tier::Confined, landlock).optional(),
            layer("pidNamespace", Tier::Isolated, false),
        ])
    }

    #[test]
    fn a_tier_is_there_with_all_of_its_layers() {
        assert_eq!(report(true, false).tier, Tier::Confined);
        assert_eq!(report(false, true).tier, Tier::Base);
    }

    #[test]
    fn a_fall_is_told_with_what_is_missing() {
        assert_eq!(report(true, true).fall_from(Tier::Confined), None);
        assert_eq!(report(false, true).fall_from(Tier::Confined).as_deref(), Some("files (no)"));
    }

    #[test]
    fn what_is_missing_is_named() {
        let report = report(false, false);
        let open = &Rules::default();
        assert_eq!(report.objection(Some(Tier::Base), Network::Open, open), None);
        let text = report.objection(Some(Tier::Confined), Network::Open, open).unwrap();
        assert!(text.contains("missing: files (no).") && !text.contains("privateUser"), "{text}");
        let text = report.objection(Some(Tier::Isolated), Network::Open, open).unwrap();
        assert!(text.contains("files (no); pidNamespace (no)"), "{text}");
        assert!(report.objection(None, Network::None, open).unwrap().contains("networkClosed"));
        let text = report.objection(None, Network::Open, &Rules::nothing()).unwrap();
        assert!(text.starts_with("network: {\"allow\":[]} cannot be enforced here: networkRules"), "{text}");
    }
}
